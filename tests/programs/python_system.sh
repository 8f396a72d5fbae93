# needs: python3 libpython3.11-testsuite
# Python's own tests of system calls: files, signals, threads.
# timeout: 300
. "$TESTS/python_tests.inc"
# dnotify, which test_fcntl_64_bit tries, is not there.
modules "os -i test_fork* -i test_nowait -i test_spawn* -i test_waitpid -i test_waitstatus_to_exitcode*" \
	"fcntl -i test_lockf_* -i test_fcntl_64_bit" \
	signal \
	"threading -i *fork* -i test_2_join_in_forked_process -i test_3_join_in_forked_from_thread"
