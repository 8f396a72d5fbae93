# needs: nginx-light curl apache2-utils
# timeout: 60
# nginx in one process, serving files.
mkdir -p "$DIR/www/dir" "$DIR/tmp"
echo '<h1>home</h1>' > "$DIR/www/index.html"
head -c 1024 /dev/zero | tr '\0' x > "$DIR/www/1k"
for i in $(seq 100000); do echo "line $i"; done > "$DIR/www/large.txt"
echo inside > "$DIR/www/dir/file.txt"
touch -d '2020-02-02 02:02:02 UTC' "$DIR/www/1k" "$DIR/www/index.html"
cat > "$DIR/nginx.conf" <<EOF
daemon off;
master_process off;
pid $DIR/tmp/pid;
error_log stderr;
events { worker_connections 256; }
http {
  types { text/html html; text/plain txt; }
  sendfile on;
  access_log $DIR/tmp/access.log;
  client_body_temp_path $DIR/tmp/a; proxy_temp_path $DIR/tmp/b; fastcgi_temp_path $DIR/tmp/c;
  uwsgi_temp_path $DIR/tmp/d; scgi_temp_path $DIR/tmp/e;
  server {
    listen 127.0.0.1:$PORT;
    root $DIR/www;
    location /dir/ { autoindex on; }
    location /gone { return 410; }
    location /gz { alias $DIR/www/; gzip on; gzip_types text/plain; gzip_min_length 10; }
    location /slow { alias $DIR/www/; limit_rate 400k; }
  }
}
EOF
PATH=$PATH:/usr/sbin
$RUN nginx -p "$DIR/" -c nginx.conf 2> "$DIR/tmp/log" &
server=$!
url=http://127.0.0.1:$PORT
for _ in $(seq 200); do curl -s -o "$DIR/tmp/x" "$url/" && break; sleep 0.05; done
curl -s "$url/"
curl -s "$url/1k" | md5sum
curl -s "$url/large.txt" | md5sum
curl -s -I "$url/1k" | grep -vi '^date' | tr -d '\r'
curl -s -r 100-199 "$url/large.txt" | md5sum
curl -s -o "$DIR/tmp/x" -w '%{http_code}\n' "$url/none"
curl -s -o "$DIR/tmp/x" -w '%{http_code}\n' "$url/gone"
curl -s -o "$DIR/tmp/x" -w '%{http_code}\n' -X POST -d a=b "$url/1k"
curl -s -o "$DIR/tmp/x" -w '%{http_code}\n' -H 'If-Modified-Since: Mon, 03 Feb 2020 00:00:00 GMT' "$url/1k"
curl -s "$url/dir/" | sed -E 's/[0-9]{2}-[A-Z][a-z]{2}-[0-9]{4} [0-9:]{5}/DATE/'
curl -s --compressed "$url/gz/large.txt" | md5sum
curl -s "$url/slow/1k" | wc -c
ab -q -n 2000 -c 20 -k "$url/1k" | grep -E '^(Complete|Failed|Non-2xx|Keep-Alive|Document Length|HTML transferred)'
ab -q -n 500 -c 10 "$url/large.txt" | grep -E '^(Complete|Failed|HTML transferred)'
# Changed and removed while it runs.
echo changed > "$DIR/www/index.html"
sleep 0.5
curl -s "$url/"
rm "$DIR/www/dir/file.txt"
sleep 0.5
curl -s -o "$DIR/tmp/x" -w '%{http_code}\n' "$url/dir/file.txt"
grep -c . "$DIR/tmp/access.log" > "$DIR/tmp/lines"
# Graceful end.
kill -QUIT "$server"
wait "$server" && echo "ended well" || echo "ended with $?"
rm -rf "$DIR/tmp" "$DIR/nginx.conf" "$DIR/www/large.txt"
