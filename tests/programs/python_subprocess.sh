# needs: python3 libpython3.11-testsuite
# Python's own tests of subprocess: fork, vfork and exec, posix_spawn.
# timeout: 300
. "$TESTS/python_tests.inc"
modules subprocess \
	"concurrent_futures -m *Thread* -i test_hang_global_shutdown_lock"
