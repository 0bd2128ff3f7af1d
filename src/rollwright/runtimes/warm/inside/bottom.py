# mypy: ignore-errors
# Runs under the interpreter of a script, which may be older than ours: plain Python 3.10, unannotated.
"""The program that a zygote is started as, and the one frame that lies below a script. All else is in `zygote.py`.

    bottom.py CHANNEL SCRIPT SHA256 [whole]

An interpreter keeps what it has read of its program until that ends, and here every child ends it: so it is short.
"""

import sys

import zygote

# Taken off when a script has run: what comes then is not its own, which by then may have put others in their place.
_setprofile, _settrace = sys.setprofile, sys.settrace

script = zygote.main(sys.argv[1:], sys._getframe())
try:
    exec(script.code, vars(sys.modules["__main__"]))
except BaseException as error:
    _setprofile(None)
    _settrace(None)
    zygote.ending.failed(error)
    raise
_setprofile(None)
_settrace(None)
zygote.ending.passed()
