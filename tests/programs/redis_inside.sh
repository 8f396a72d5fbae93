# needs: redis-server redis-tools
# options: --memory 1G
# timeout: 90
# What redis_saves does, with its clients in the same cell: so it can be where nobody outside reaches the cell's network.
mkdir in
{
	echo "RUN= PORT=$PORT DIR=$DIR/in"
	cat "$TESTS/redis.inc"
	sed '1,/redis\.inc"$/d' "$TESTS/redis_saves.sh"
} > all
$RUN bash -euo pipefail all
rm -rf "$DIR"/*
