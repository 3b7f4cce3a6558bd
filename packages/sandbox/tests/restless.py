"""Programs that do not stand still: timers of the kernel's continue and end what is stopped."""

from __future__ import annotations

RESTLESS = """
import ctypes, os, signal, struct, time
libc = ctypes.CDLL(None, use_errno=True)
create, settime = (222, 223) if os.uname().machine == "x86_64" else (107, 110)
out = os.open("/tmp/n", os.O_RDWR | os.O_CREAT)
turns = 0
def turn(*_):
    global turns
    turns += 1
    os.pwrite(out, b"%d" % turns, 0)
signal.signal(signal.SIGCONT, turn)
timer = ctypes.c_int()
event = struct.pack("qii48x", 0, signal.SIGCONT, 0)
assert libc.syscall(create, 1, event, ctypes.byref(timer)) == 0
print("ready", flush=True)
while True:  # a stop that comes while its signal is pending ends the timer
    assert libc.syscall(settime, timer, 0, struct.pack("qqqq", 0, 1000000, 0, 1000000), None) == 0
    time.sleep(0.1)
"""

ENDING = """
import ctypes, os, signal, struct, time
libc = ctypes.CDLL(None, use_errno=True)
create, settime = (222, 223) if os.uname().machine == "x86_64" else (107, 110)
def end_in(seconds):
    timer = ctypes.c_int()
    event = struct.pack("qii48x", 0, signal.SIGKILL, 0)
    assert libc.syscall(create, 1, event, ctypes.byref(timer)) == 0
    when = struct.pack("qqqq", 0, 0, int(seconds), int(seconds % 1 * 1e9))
    assert libc.syscall(settime, timer, 0, when, None) == 0
print("ready", flush=True)
while True:
    if os.fork() == 0:
        end_in(0.3)
        time.sleep(60)
    time.sleep(0.01)
    while os.waitpid(-1, os.WNOHANG)[0]:
        pass
"""
