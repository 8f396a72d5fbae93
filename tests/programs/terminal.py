"""Drives a program on a terminal of its own, as a person would, and prints
what the terminal showed.

    terminal.py SCRIPT PROGRAM [ARGUMENT...]

SCRIPT is Python: a list of steps, each (what to type, what to wait for), or
(a window size, None).
"""

import ast
import fcntl
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time

LIMIT = 60


def resize(fd, rows, columns):
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def until(fd, pattern, shown):
    """Reads until the end of what came matches; the rest of it."""
    end = time.monotonic() + LIMIT
    while not re.search(pattern + r"\Z", shown, re.S):
        left = end - time.monotonic()
        if left <= 0 or not select.select([fd], [], [], left)[0]:
            print("nothing like %r in %r" % (pattern, shown))
            sys.exit(1)
        try:
            more = os.read(fd, 4096)
        except OSError:
            more = b""
        if not more:
            print("the end, and nothing like %r in %r" % (pattern, shown))
            sys.exit(1)
        shown += more.decode(errors="replace")
    return shown


def main():
    with open(sys.argv[1], encoding="utf-8") as f:
        steps = ast.literal_eval(f.read())
    looked_at, seen = os.pipe()
    pid, fd = pty.fork()
    if pid == 0:
        resize(0, 24, 80)
        # The program changes the terminal's settings: not before they were looked at.
        os.read(looked_at, 1)
        os.execvp(sys.argv[2], sys.argv[2:])
    before = termios.tcgetattr(fd)
    os.write(seen, b"x")
    for typed, awaited in steps:
        if isinstance(typed, tuple):
            resize(fd, *typed)
            continue
        if "\x03" in typed:
            # A person takes longer than a program from its last output to its wait.
            # An interrupt in between is missed by readline, on Linux too (3 of 60 runs
            # on a busy machine): it looks for one only where its select() fails.
            time.sleep(0.3)
        os.write(fd, typed.encode())
        if awaited is not None:
            shown = until(fd, awaited, "")
            # One line for each that was shown, so that differences can be read.
            for line in shown.splitlines(keepends=True):
                print(repr(line))
    # The end.
    rest = ""
    end = time.monotonic() + LIMIT
    while time.monotonic() < end and select.select([fd], [], [], LIMIT)[0]:
        try:
            more = os.read(fd, 4096)
        except OSError:
            break
        if not more:
            break
        rest += more.decode(errors="replace")
    print("then", repr(rest))
    # Somebody still has it open until the program is gone: look at it now.
    status = None
    while time.monotonic() < end and status is None:
        got, code = os.waitpid(pid, os.WNOHANG)
        if got:
            status = os.waitstatus_to_exitcode(code)
        else:
            time.sleep(0.02)
    if status is None:
        os.kill(pid, signal.SIGKILL)
    print("status", status)
    after = termios.tcgetattr(fd)
    print("terminal as before:", before == after)


main()
