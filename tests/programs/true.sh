# The least that a program can do, and its exit status.
$RUN /bin/true
$RUN /bin/false || echo "status $?"
$RUN /bin/echo hello
