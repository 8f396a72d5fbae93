# needs: python3 libpython3.11-testsuite
# Python's own tests of what needs little of a system.
# timeout: 180
. "$TESTS/python_tests.inc"
# One sets the machine's clock, which is no test's business and refused in a
# cell; extended attributes can't be changed there.
modules math json queue \
	"re -i test_regression_gh94675" \
	"time -i test_monotonic_settime" \
	"shutil -i *xattr*" \
	mmap resource pathlib \
	"tempfile -i test_noinherit -i test_process_awareness"
