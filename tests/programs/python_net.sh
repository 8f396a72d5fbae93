# needs: python3 libpython3.11-testsuite
# Python's own tests of sockets and of what stands on them.
# timeout: 400
. "$TESTS/python_tests.inc"
# Sockets of virtual machines wait for ever on hosts that have none; UDP-Lite
# is not let through to the host. Not there yet: control messages that go out
# with a message over IP, and names of interfaces.
modules "socket -i *VSOCK* -i *UDPLITE* -i testSet*HopLimit* -i testOddCmsgSize -i testInterfaceNameIndex -i *scopeid_symbolic" \
	"asyncio -i test_get_event_loop_new_process"
