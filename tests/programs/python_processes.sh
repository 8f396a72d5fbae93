# needs: python3 libpython3.11-testsuite
# timeout: 300
# Python's own tests of processes: fork, pools and their queues, locks and shared memory between processes.
. "$TESTS/python_tests.inc"
modules fork1 wait3 wait4 \
	"concurrent_futures -m *ForkProcessPoolExecutorTest.test_[a-m]* -m *ForkFutureTest*" \
	"multiprocessing_fork -m *WithProcessesTestLock* -m *WithProcessesTestQueue* -m *WithProcessesTestProcess.test_[a-e]*"
