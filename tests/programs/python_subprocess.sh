# needs: python3 libpython3.11-testsuite
# Python's own tests of subprocess: vfork and exec, posix_spawn. What runs code
# in the child before exec, or changes its ids, needs fork.
# timeout: 300
. "$TESTS/python_tests.inc"
modules "subprocess -i *preexec* -i test_extra_groups* -i test_group* -i test_user* -i test_surrogates_error_message" \
	"concurrent_futures -m *Thread* -i test_hang_global_shutdown_lock"
