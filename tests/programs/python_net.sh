# needs: python3 libpython3.11-testsuite
# Python's own tests of sockets and of what stands on them.
# timeout: 800
. "$TESTS/python_tests.inc"
# Sockets of virtual machines wait for ever on hosts that have none; UDP-Lite
# is not let through to the host.
late=$(echo test_ssl.TestSSL.test_remote_shutdown_receives_trailing_data
	echo test_waitfor.AsyncioWaitForTest.test_wait_for{,_timeout_less_then_0_or_0{,_future_done,_coroutine_do_not_started}}
	echo test_events.{Select,EPoll,Poll}EventLoopTests.test_{prompt_cancellation,run_until_complete})
modules "socket -i *VSOCK* -i *UDPLITE*" \
	"asyncio $(printf -- '-i test.test_asyncio.%s ' $late)"
# The first gives the other thread 0.2 s to make 4 MiB, the others have to be done after 0.1 to 0.8 s: they fail on Linux as in a cell when
# there is no processor meanwhile, where others are tested beside them. They have ten times as long here.
cat > late.py <<E
import sys, time, unittest
from asyncio import base_events
from test.test_asyncio import test_events, test_ssl, test_waitfor
class Patient:
    def __getattr__(self, name):
        return getattr(time, name)
    def sleep(self, seconds):
        time.sleep(10 * seconds)
    def monotonic(self):
        return time.monotonic() / 10
base_events.time = test_events.time = test_ssl.time = Patient()
suite = unittest.TestSuite()
for name in """$late""".split():
    module, case, test = name.split(".")
    suite.addTest(getattr(globals()[module], case)(test))
sys.exit(not unittest.TextTestRunner().run(suite).wasSuccessful())
E
$RUN /usr/bin/python3 late.py > late.out 2>&1 || cat late.out >&2
grep -E '^(Ran [0-9]+ test|OK|FAILED)' late.out | sed -E 's/ in [0-9.]+s$//'
rm late.py late.out
