# needs: openssh-server openssh-client coreutils bash
# timeout: 120
# OpenSSH's server and its clients in one cell: the first half of what ssh does.
mkdir in
{
	echo "RUN= PORT=$PORT DIR=$DIR/in HOME=$DIR/in"
	# Its login looks there, whatever it is told of it.
	echo '[ -e /var/log/lastlog ] || { mkdir -p /var/log && : > /var/log/lastlog; }'
	sed '/^# The other way round/,$d' "$TESTS/ssh.sh"
} > all
$RUN bash -euo pipefail all
rm -rf "$DIR"/*
