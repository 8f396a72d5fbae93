# needs: nodejs
# Node.js: event loop, files, HTTP within and to a client outside, worker
# threads, cryptography, compression, signals, children.
# timeout: 60
code=0
$RUN /usr/bin/node "$TESTS/node.js" || code=$?
echo "ended with $code"
