"""A module that starts a thread when it is imported: a process with it must not fork."""

import threading

threading.Thread(target=threading.Event().wait, daemon=True).start()
