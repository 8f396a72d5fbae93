# needs: python3 libpython3.11-testsuite
# Python's own tests of input and output and of waiting for it.
# timeout: 300
. "$TESTS/python_tests.inc"
modules io select poll epoll "selectors -i test_timeout" httplib ssl
# What doesn't wait has to be done after 0.5 s there, which a busy machine may need: it has ten times as long here.
cat > late.py <<E
import sys, unittest
from test import test_selectors
class Patient:
    def assertLess(self, took, limit):
        super().assertLess(took, 10 * limit)
suite = unittest.TestSuite()
for name in "Default", "Select", "Poll", "Epoll":
    case = getattr(test_selectors, name + "SelectorTestCase")
    suite.addTest(type(name, (Patient, case), {})("test_timeout"))
sys.exit(not unittest.TextTestRunner().run(suite).wasSuccessful())
E
$RUN /usr/bin/python3 late.py > late.out 2>&1 || cat late.out >&2
grep -E '^(Ran [0-9]+ test|OK|FAILED)' late.out | sed -E 's/ in [0-9.]+s$//'
rm late.py late.out
