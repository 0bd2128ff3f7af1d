# mypy: ignore-errors
# Runs under the interpreter of a script, which may be older than ours: plain Python 3.10, unannotated.
# The program that a zygote is started as, and the one frame that lies below a script. All else is in `zygote.py`.
#
#     bottom.py CHANNEL SCRIPT SHA256 [whole]
#
# An interpreter keeps what it has read of its program until that ends, and here every child ends it: so it is short.

import zygote

script = zygote.main()
try:
    exec(script.code, zygote.names())
except BaseException as error:
    zygote.unprofile(None)
    zygote.untrace(None)
    zygote.ending.failed(error)
    raise
zygote.unprofile(None)
zygote.untrace(None)
zygote.ending.passed()
