"""llama-server as one command, made of the parts of the xllamacpp wheel: its argument parser, its server, its log.

    python -m tests.real_llama.llama_server -m FILE.gguf --host 127.0.0.1 --port 18080 ...

Not the program itself, for its published builds for Python need a processor with AVX-512 or AMX. The wheel holds everything of
llama-server but `main`, which is this file: it reads the words as llama-server does, exits 1 where that does, and 0 on SIGTERM. The
C++ parser fills the struct that stands inside the Python object, 16 bytes from its start in this build; `parsed` checks that it
stands there. The lines of its log, those of a failed start too, come from the C++ code.
"""

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Sequence

import xllamacpp
from xllamacpp import xllamacpp as module

BUILD = "b11549"
#: common/common.h, LLAMA_EXAMPLE_SERVER: the one whose help has --metrics
SERVER_OPTIONS = 12
#: a Python object's head and Cython's table of functions
STRUCT_AT = 16
#: writes what is still queued in its log; the log is that of common_log_main
FLUSH, MAIN_LOG = "_Z16common_log_flushP10common_log", "_Z15common_log_mainv"
PARSER = "_Z19common_params_parseiPPcR13common_params13llama_examplePFviS0_E"
#: the second field of the struct
CONTEXT_AT, MARK = 20, 0x1234567


class Refused(Exception):
    """The parser took these words for no command line; it has said why."""


def parse_words(words: Sequence[str]) -> xllamacpp.CommonParams:
    """Return the parameters of a command line, by llama-server's parser. Raises Refused. `--help` prints it and ends the process, as there."""
    parameters = xllamacpp.CommonParams()
    defaults, parameters.n_ctx = parameters.n_ctx, MARK
    if ctypes.c_int32.from_address(id(parameters) + CONTEXT_AT).value != MARK:
        raise RuntimeError("another build of xllamacpp: its parameters stand elsewhere")
    parameters.n_ctx = defaults
    parse = getattr(ctypes.CDLL(module.__file__), PARSER)
    parse.restype = ctypes.c_bool
    argv = (ctypes.c_char_p * (len(words) + 2))(b"llama-server", *(os.fsencode(word) for word in words), None)
    if not parse(len(words) + 1, argv, ctypes.c_void_p(id(parameters) + STRUCT_AT), SERVER_OPTIONS, None):
        raise Refused
    return parameters


def main(words: Sequence[str]) -> int:
    """Serve until SIGTERM. Returns the exit code."""
    try:
        parameters = parse_words(words)
    except Refused:
        return 1
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    serving = Serving(parameters, ended)
    serving.start()
    ended.wait()
    serving.server = None  # its destructor stops it
    return int(serving.failed)


class Serving(threading.Thread):
    """Loads the model and listens, beside the thread that gets signals. ended: set when that fails."""

    def __init__(self, parameters: xllamacpp.CommonParams, ended: threading.Event) -> None:
        super().__init__(daemon=True)
        self.parameters, self.ended = parameters, ended
        self.server: xllamacpp.Server | None = None
        self.failed = False

    def run(self) -> None:
        try:
            self.server = xllamacpp.Server(self.parameters)
        except Exception as error:  # whatever it is, it has said so in its log
            print(error, file=sys.stderr, flush=True)
            self.failed = True
            self.ended.set()


def flush() -> None:
    """Its log is written by a thread of its own, which llama-server waits for in its end."""
    library = ctypes.CDLL(module.__file__)
    log = getattr(library, MAIN_LOG)
    log.restype = ctypes.c_void_p
    getattr(library, FLUSH)(ctypes.c_void_p(log()))
    sys.stdout.flush()


if __name__ == "__main__":
    code = main(sys.argv[1:])
    flush()
    os._exit(code)  # a model that is being loaded can't be interrupted otherwise
