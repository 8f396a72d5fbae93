# needs: python3 libpython3.11-testsuite
# Python's own tests of what needs little of a system.
# timeout: 180
. "$TESTS/python_tests.inc"
# One of time's sets the machine's clock, which is no test's business. One of re's measures how long something takes.
modules math json queue \
	"re -i test_regression_gh94675" \
	"time -i test_monotonic_settime" \
	shutil mmap resource pathlib tempfile
