# curl: files, and HTTP from a server on the host.
# needs: curl python3
# timeout: 120
mkdir site; echo 'hello page' > site/index.html; seq 100000 > site/large; ln -s index.html site/alias; printf '\0\1\2' > site/bin; mkdir site/dir; echo in > site/dir/index.html
cat > server.py <<'PY'
import http.server, os, sys
class H(http.server.SimpleHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def log_message(self, *a): pass
    def version_string(self): return 'server'
    def date_time_string(self, t=None): return 'today'
    def do_GET(self):
        r = self.headers.get('Range')
        if r:
            data = open(self.translate_path(self.path), 'rb').read(); a, b = r.split('=')[1].split('-'); a = int(a or len(data) - int(b)); b = int(b) if b and r.split('=')[1][0] != '-' else len(data) - 1
            self.send_response(206); self.send_header('Content-Length', str(b + 1 - a)); self.send_header('Content-Range', f'bytes {a}-{b}/{len(data)}'); self.end_headers(); self.wfile.write(data[a:b + 1]); return
        if self.path == '/redirect': self.send_response(302); self.send_header('Location', '/index.html'); self.send_header('Content-Length', '0'); self.end_headers(); return
        if self.path == '/chunked':
            self.send_response(200); self.send_header('Transfer-Encoding', 'chunked'); self.end_headers()
            for n in range(50): self.wfile.write(b'6\r\nline%02d\r\n' % n)
            self.wfile.write(b'0\r\n\r\n'); return
        if self.path == '/headers': body = ''.join(f'{k}: {v}\n' for k, v in sorted(self.headers.items()) if k != 'Host').encode(); self.send_response(200); self.send_header('Content-Length', str(len(body))); self.end_headers(); self.wfile.write(body); return
        if self.path == '/hang': import time; time.sleep(5); return
        super().do_GET()
    def do_POST(self):
        n = int(self.headers.get('Content-Length', 0)); data = self.rfile.read(n); body = b'%s %d %s\n' % (self.command.encode(), n, data[:40]); self.send_response(200); self.send_header('Content-Length', str(len(body))); self.end_headers(); self.wfile.write(body)
    do_PUT = do_POST
os.chdir('site')
http.server.ThreadingHTTPServer(('127.0.0.1', int(sys.argv[1])), H).serve_forever()
PY
python3 server.py $PORT 2> /dev/null & server=$!
trap 'kill $server; wait $server 2> /dev/null || true' EXIT
url=http://127.0.0.1:$PORT
until curl -s -o /dev/null $url; do sleep 0.05; done
c() { $RUN curl -sS "$@" 2>&1 | sed "s/$PORT/PORT/g; s/ after [0-9]* ms/ after some ms/; s/ (after|in) [0-9.]* milli.*//" || echo "status $?"; }
c $url; c $url/index.html $url/alias $url/dir/; c http://localhost:$PORT/; c -I $url; c -i $url/bin | od -c | sed -n '1,3p'
c -o large $url/large; cmp large site/large && echo same; rm large
c -O --output-dir . $url/large; cmp large site/large && echo same
c -r 0-9 $url/large; c -r -6 $url/large; c -r 100- $url/index.html 2>&1 | wc -c; head -c 1000 site/large > part; c -C - -o part $url/large; cmp part site/large && echo resumed
c $url/redirect -w '%{http_code} %{size_download} %{num_redirects}\n'; c -L $url/redirect; c $url/chunked | tail -c 12; echo; c -f $url/none; c -w '%{http_code}\n' -o /dev/null $url/none; c -A agent -e ref -H 'X-Own: 1' -b a=b -u me:secret $url/headers; c --compressed $url/headers
c -d 'name=value' -d x=y $url/post; c --data-binary @site/large $url/post; c -T site/large $url/put; echo piped | c -T - -H 'Content-Length: 6' -H 'Transfer-Encoding:' $url/put; c -F 'f=@site/index.html' $url/form | cut -c 1-12; c -X PUT -d z $url/put; c -G -d q=1 $url/headers
c file://$DIR/site/index.html; c -o copy file://$DIR/site/large; cmp copy site/large && echo same; c file://$DIR/none; c -I file://$DIR/site/index.html | grep Length; rm copy part large
c --max-time 2 $url/hang | sed 's/after [0-9]* milliseconds with 0/after some with 0/'; c http://127.0.0.1:1/; c nosuchscheme://x; c http://nothing.invalid/; c --resolve some.name:$PORT:127.0.0.1 http://some.name:$PORT/; c --unix-socket /nothing $url; c $url/index.html $url/none $url/index.html | wc -l; c --limit-rate 10M -o /dev/null $url/large; c -v $url 2>&1 | grep -c '^[<>]'; c -4 http://localhost:$PORT/index.html; c --keepalive-time 5 --tcp-nodelay $url; c -K - <<< "url = $url/index.html"; c -D head -o /dev/null $url; tr -d '\r' < head; c -z '2030-01-01' -w '%{http_code}\n' $url/index.html; c -c jar $url -o /dev/null; test -s jar && echo jar; rm -f jar head
$RUN curl -s http://127.0.0.1:1/ || echo "status $?"
$RUN curl --version | sed -n 1p | cut -d ' ' -f 1
