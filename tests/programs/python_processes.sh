# needs: python3 libpython3.11-testsuite
# options: --memory 2G
# timeout: 300
# Python's own tests of processes: fork, pools and their queues, locks and shared memory between processes, terminals; the same
# with processes that begin afresh or that a server forks: a few, as these are slow.
. "$TESTS/python_tests.inc"
modules fork1 wait3 wait4 pty \
	"concurrent_futures -m *ForkProcessPoolExecutorTest.test_[a-m]* -m *ForkFutureTest* -m *SpawnProcessPoolExecutorTest.test_[a-l]*" \
	"multiprocessing_fork -m *WithProcessesTestLock* -m *WithProcessesTestQueue* -m *WithProcessesTestProcess.test_[a-e]* \
		-m *WithProcessesTest[PS]* -m *WithProcessesTestEvent* -m *WithProcessesTestCondition* -m *WithManagerTestPool.test_[a-m]* \
		-m *TestSyncManagerTypes* -m *WithManagerTestContainers* -m *WithProcessesTestConnection* -m *TestPicklingConnections*" \
	"multiprocessing_spawn -m *WithProcessesTestEvent* -m *WithProcessesTestSemaphore* -m *TestSharedMemory*" \
	"multiprocessing_forkserver -m *WithProcessesTestEvent* -m *WithProcessesTestPool.test_[a-i]* -m *WithProcessesTestBarrier.test_[a-d]*"
