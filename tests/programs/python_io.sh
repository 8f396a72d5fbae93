# needs: python3 libpython3.11-testsuite
# Python's own tests of input and output and of waiting for it.
# timeout: 300
. "$TESTS/python_tests.inc"
modules io select poll epoll selectors httplib ssl
