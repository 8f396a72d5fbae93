# needs: apache2-bin apache2-utils curl mime-support
# timeout: 120
# Apache with processes (prefork) and with processes of many threads (event): requests, scripts, a proxy to itself, a graceful
# restart under load, a worker that is killed, the end.
mkdir www scripts
seq 1000 > www/page
seq 200000 > www/large
printf '#!/bin/sh\nprintf "Content-Type: text/plain\\n\\n"\necho "$REQUEST_METHOD $QUERY_STRING"\ncat\n' > scripts/env
chmod 755 scripts/env
for kind in prefork event; do
	cat > conf.$kind <<EOF
ServerRoot $DIR
ServerName localhost
Listen 127.0.0.1:$PORT
PidFile $DIR/pid
ErrorLog $DIR/error.log
DocumentRoot $DIR/www
User www-data
Group www-data
StartServers 2
$(for m in mpm_$kind authz_core deflate alias proxy proxy_http $([ $kind = prefork ] && echo cgi || echo cgid); do
	echo "LoadModule ${m}_module /usr/lib/apache2/modules/mod_$m.so"
done)
$([ $kind = prefork ] || echo "ScriptSock $DIR/socket")
ScriptAlias /scripts/ $DIR/scripts/
ProxyPass /proxied http://127.0.0.1:$PORT/page
SetOutputFilter DEFLATE
EOF
done
cat > server <<'EOF'
PATH=$PATH:/usr/sbin
url=http://127.0.0.1:$1
load() { ab -q "$@" | grep -E '^(Complete|Failed|Non-2xx)'; }
workers() { grep -l "^PPid:[[:space:]]$server\$" /proc/[0-9]*/status 2> /dev/null; }
for kind in prefork event; do
	echo "== $kind"
	# It signals its whole group.
	setsid apache2 -f "$PWD/conf.$kind" -DFOREGROUND &
	server=$!
	for _ in $(seq 200); do curl -s -o /dev/null "$url/page" && break; sleep 0.05; done
	for what in page large proxied 'scripts/env?a=b'; do curl -s -d data "$url/$what" | md5sum; done
	curl -s --compressed "$url/large" | md5sum
	curl -s -o /dev/null -w '%{http_code}\n' "$url/nothing"
	load -n 1000 -c 16 "$url/page"
	load -k -n 1000 -c 16 "$url/page"
	load -n 40 -c 8 "$url/scripts/env"
	load -n 1000 -c 8 "$url/page" > under &
	client=$!
	apache2 -f "$PWD/conf.$kind" -k graceful
	wait "$client"
	cat under
	for _ in $(seq 400); do [ "$(grep -c 'resuming normal operations' error.log)" = 2 ] && break; sleep 0.05; done
	kill -KILL "$(basename "$(dirname "$(workers | head -1)")")"
	load -n 100 -c 1 "$url/page" | head -1
	apache2 -f "$PWD/conf.$kind" -k graceful-stop
	wait "$server" || true
	echo "ended: $?"
	grep -c 'resuming normal operations' error.log
	rm error.log
done
EOF
$RUN bash server "$PORT"
rm -rf "$DIR"/*
