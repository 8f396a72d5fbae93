# needs: python3 libpython3.11-testsuite
# Python's own tests of sockets and of what stands on them.
# timeout: 400
. "$TESTS/python_tests.inc"
# Sockets of virtual machines wait for ever on hosts that have none; UDP-Lite
# is not let through to the host.
modules "socket -i *VSOCK* -i *UDPLITE*" \
	"asyncio -i *pty* -i test_get_event_loop_new_process"
