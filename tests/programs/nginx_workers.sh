# needs: nginx-light curl apache2-utils
# timeout: 60
# nginx with a master and four workers, which it hears of by signals: reload, a worker that is killed, graceful end.
mkdir -p "$DIR/www" "$DIR/run"
seq 1000 > "$DIR/www/page"
cat > "$DIR/nginx.conf" <<EOF
daemon off;
pid $DIR/run/pid;
error_log $DIR/run/error.log;
worker_processes 4;
worker_shutdown_timeout 5s;
user root;
events { worker_connections 64; }
http {
  access_log $DIR/run/access.log;
  client_body_temp_path $DIR/run/a; proxy_temp_path $DIR/run/b; fastcgi_temp_path $DIR/run/c;
  uwsgi_temp_path $DIR/run/d; scgi_temp_path $DIR/run/e;
  server { listen 127.0.0.1:$PORT; root $DIR/www; }
}
EOF
cat > "$DIR/server" <<'EOF'
PATH=$PATH:/usr/sbin
url=http://127.0.0.1:$2
run=$1/run
# The workers' ids, each time there are as many as are wanted.
workers() {
  for _ in $(seq 200); do
    list=$(grep -l "^PPid:[[:space:]]$server\$" /proc/[0-9]*/status 2> /dev/null | sort) || true
    [ "$(echo "$list" | grep -c .)" = 4 ] && [ "$list" != "${1:-}" ] && break
    sleep 0.05
  done
  echo "$list"
}
nginx -p "$1/" -c nginx.conf &
server=$!
for _ in $(seq 200); do curl -s -o /dev/null "$url/page" && break; sleep 0.05; done
first=$(workers)
echo "$first" | grep -c .
for _ in 1 2 3 4 5 6 7 8; do curl -s "$url/page" | md5sum; done | sort | uniq -c
ab -q -n 1000 -c 16 "$url/page" | grep -E '^(Complete|Failed|Non-2xx)'
# Others take over, and no request is lost.
ab -q -n 1000 -c 8 "$url/page" > "$run/ab" &
load=$!
kill -HUP "$server"
wait "$load"
grep -E '^(Complete|Failed|Non-2xx)' $run/ab
for _ in $(seq 200); do
  second=$(workers "$first")
  comm -12 <(echo "$first") <(echo "$second") | grep -q . || break
  sleep 0.05
done
comm -12 <(echo "$first") <(echo "$second") | grep -c . || true
curl -s "$url/page" | md5sum
# One that dies is replaced.
one=$(echo "$second" | head -1)
kill -KILL "$(basename "$(dirname "$one")")"
third=$(workers "$second")
comm -12 <(echo "$second") <(echo "$third") | grep -c .
curl -s "$url/page" | md5sum
# Logs are opened anew by all.
mv $run/access.log $run/access.old
kill -USR1 "$server"
anew() { for w in $(workers); do links=$(ls -l "${w%status}fd") && [[ $links == *access.log* && $links != *access.old* ]] || return 1; done; }
for _ in $(seq 200); do anew && break; sleep 0.05; done
for _ in 1 2 3 4 5; do curl -s -o /dev/null "$url/page"; done
for _ in $(seq 200); do [ "$(grep -c . $run/access.log)" = 5 ] && break; sleep 0.05; done
grep -c . $run/access.log
kill -QUIT "$server"
wait "$server"
echo "ended: $?"
grep -o 'exited on signal 9' $run/error.log
grep -c -E '\[(emerg|crit)\]' $run/error.log || true
EOF
$RUN bash -eu "$DIR/server" "$DIR" "$PORT"
rm -r "$DIR/server" "$DIR/nginx.conf" "$DIR/run"
