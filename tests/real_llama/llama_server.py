"""llama-server as a command, built from the xllamacpp wheel: its argument parser, server and log.

    python -m tests.real_llama.llama_server -m FILE.gguf --host 127.0.0.1 --port 18080 ...

The published builds of the program for Python need a processor with AVX-512 or AMX. The wheel contains all of llama-server except
`main`, which is this file: it parses the words like llama-server, exits with 1 in the same cases, and with 0 on SIGTERM. The
C++ parser fills the struct inside the Python object, 16 bytes from its start in this build, which `parse_words` checks. All
lines of the log come from the C++ code.
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
#: LLAMA_EXAMPLE_SERVER in common/common.h
SERVER_OPTIONS = 12
#: size of a Python object's head and Cython's table of functions
STRUCT_AT = 16
#: write the queued lines of a log; return the main log
FLUSH, MAIN_LOG = "_Z16common_log_flushP10common_log", "_Z15common_log_mainv"
PARSER = "_Z19common_params_parseiPPcR13common_params13llama_examplePFviS0_E"
#: position of the struct's second field, and a value to find it
CONTEXT_AT, MARK = 20, 0x1234567


class Refused(Exception):
    """The parser refused a command line and has printed the reason."""


def parse_words(words: Sequence[str]) -> xllamacpp.CommonParams:
    """Return the parameters of a command line. Raises Refused. `--help` prints the help and exits."""
    parameters = xllamacpp.CommonParams()
    defaults, parameters.n_ctx = parameters.n_ctx, MARK
    if ctypes.c_int32.from_address(id(parameters) + CONTEXT_AT).value != MARK:
        raise RuntimeError("another build of xllamacpp: its parameters are elsewhere")
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
    serving.server = None  # the destructor stops it
    return int(serving.failed)


class Serving(threading.Thread):
    """Loads the model and listens; the main thread handles signals. ended: set if the start fails."""

    def __init__(self, parameters: xllamacpp.CommonParams, ended: threading.Event) -> None:
        super().__init__(daemon=True)
        self.parameters, self.ended = parameters, ended
        self.server: xllamacpp.Server | None = None
        self.failed = False

    def run(self) -> None:
        try:
            self.server = xllamacpp.Server(self.parameters)
        except Exception as error:  # its log has the reason
            print(error, file=sys.stderr, flush=True)
            self.failed = True
            self.ended.set()


def flush() -> None:
    """Wait for the thread that writes the log, as llama-server does before it exits."""
    library = ctypes.CDLL(module.__file__)
    log = getattr(library, MAIN_LOG)
    log.restype = ctypes.c_void_p
    getattr(library, FLUSH)(ctypes.c_void_p(log()))
    sys.stdout.flush()


if __name__ == "__main__":
    code = main(sys.argv[1:])
    flush()
    os._exit(code)  # loading a model can't be interrupted otherwise
