# needs: stress-ng
# options: --cores 2
# timeout: 60
# POSIX message queues and asynchronous I/O under load: what is received is what was sent, in order of priority, and what is read is
# what was written.
did() { awk -v what="$1" '$4 == what && $5 > 0 { print what, "some" } /fail|error/ { print > "/dev/stderr" }'; }
$RUN stress-ng --temp-path "$DIR" --mq 2 --mq-ops 20000 --verify --metrics-brief 2>&1 | did mq
$RUN stress-ng --temp-path "$DIR" --mq 2 --mq-size 4 --mq-ops 20000 --verify --metrics-brief 2>&1 | did mq
$RUN stress-ng --temp-path "$DIR" --aiol 2 --aiol-requests 32 --aiol-ops 2000 --verify --metrics-brief 2>&1 | did aiol
