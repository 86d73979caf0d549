"""Print the help of the llama-server inside an xllamacpp wheel; run by a Python of the wheel's version.

    python tests/engine_options/ask_llama_cpp.py FOLDER_OF_THE_UNPACKED_WHEEL

llama-server's own parser prints it and exits this process. tests/real_llama/llama_server.py explains how it is called.
"""

import ctypes
import sys

PARSER = "_Z19common_params_parseiPPcR13common_params13llama_examplePFviS0_E"
STRUCT_AT, SERVER_OPTIONS = 16, 12


def main(folder: str) -> None:
    """Print the help of the wheel in this folder."""
    sys.path.insert(0, folder)
    import xllamacpp
    from xllamacpp import xllamacpp as module

    parameters = xllamacpp.CommonParams()
    parse = getattr(ctypes.CDLL(module.__file__), PARSER)
    parse.restype = ctypes.c_bool
    argv = (ctypes.c_char_p * 3)(b"llama-server", b"--help", None)
    parse(2, argv, ctypes.c_void_p(id(parameters) + STRUCT_AT), SERVER_OPTIONS, None)


if __name__ == "__main__":
    main(sys.argv[1])
