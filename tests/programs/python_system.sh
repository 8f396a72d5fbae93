# needs: python3 libpython3.11-testsuite
# Python's own tests of system calls: files, signals, threads, posix_spawn, calls that begin again after a signal.
# timeout: 300
. "$TESTS/python_tests.inc"
# dnotify, which test_fcntl_64_bit tries, is not there.
modules os "fcntl -i test_fcntl_64_bit" signal threading posix eintr
