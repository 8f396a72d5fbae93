# openssl: keys, certificates, digests, ciphers, and TLS with the cell on one side.
# needs: openssl
# timeout: 60
# Errors begin with the thread's number.
o() { $RUN openssl "$@" 2> errors || echo "status $?"; sed 's/^[0-9A-F]*:error/error/' errors; }
seq 10000 > data; printf 'key = 00112233445566778899aabbccddeeff' > note
for d in md5 sha1 sha256 sha512 sha3-256 blake2b512 sm3; do o dgst -$d data; done
o dgst -sha256 -hmac secret data; o dgst -sha256 -r data note
o enc -aes-256-cbc -K $(printf '%064d' 1) -iv $(printf '%032d' 2) -in data -out enc1; o dgst -md5 enc1; o enc -d -aes-256-cbc -K $(printf '%064d' 1) -iv $(printf '%032d' 2) -in enc1 | cmp - data && echo same
o enc -aes-128-ctr -pbkdf2 -iter 1000 -S 0011223344556677 -pass pass:word -in data -base64 -out enc2; o dgst -md5 enc2; o enc -d -aes-128-ctr -pbkdf2 -iter 1000 -pass pass:word -S 0011223344556677 -base64 -in enc2 | cmp - data && echo same
o enc -chacha20 -K $(printf '%064d' 3) -iv $(printf '%032d' 4) -in data | md5sum; o enc -d -aes-256-cbc -pbkdf2 -pass pass:wrong -in enc1 > wrong; sed -n 1p wrong | cut -c 1-20; rm wrong enc1 enc2
o base64 -in note; o rand -hex 16 | wc -c; o passwd -6 -salt abcdefgh word; o prime 97; o version | cut -d ' ' -f 1; o list -digest-algorithms | grep -c SHA; o ciphers -s -tls1_3
$RUN openssl genrsa -out rsa.key 2048 2> /dev/null; stat -c %a rsa.key; openssl rsa -in rsa.key -check -noout; o rsa -in rsa.key -pubout -out rsa.pub
$RUN openssl ecparam -genkey -name prime256v1 -noout -out ec.key; o ec -in ec.key -text -noout 2>&1 | grep -c ASN1; $RUN openssl genpkey -algorithm ED25519 -out ed.key; o pkey -in ed.key -text -noout | sed -n 1p
o dgst -sha256 -sign rsa.key -out sig data; o dgst -sha256 -verify rsa.pub -signature sig data; openssl dgst -sha256 -verify rsa.pub -signature sig data; o dgst -sha256 -verify rsa.pub -signature sig note
echo hello | $RUN openssl pkeyutl -encrypt -pubin -inkey rsa.pub -out box; o pkeyutl -decrypt -inkey rsa.key -in box
$RUN openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout server.key -out server.crt -days 30 -subj /CN=localhost -addext subjectAltName=DNS:localhost,IP:127.0.0.1 2> /dev/null
o x509 -in server.crt -noout -subject -issuer -ext subjectAltName; o verify -CAfile server.crt server.crt; $RUN openssl req -new -key rsa.key -subj /CN=other -out r.csr; o req -in r.csr -noout -verify -subject; $RUN openssl x509 -req -in r.csr -CA server.crt -CAkey server.key -set_serial 5 -out r.crt 2> /dev/null; o verify -CAfile server.crt r.crt; o x509 -in r.crt -noout -serial
$RUN openssl pkcs12 -export -inkey server.key -in server.crt -passout pass:p -out s.p12; o pkcs12 -in s.p12 -passin pass:p -nokeys | grep -c BEGIN; o asn1parse -in server.key | sed -n 1p; o smime -sign -signer server.crt -inkey server.key -in note -text | grep -c smime
o dgst -sha256 missing; o x509 -in data -noout; o nosuchcommand
# The client in the cell, the server on the host, and the other way around.
serve() { "$@" openssl s_server -accept 127.0.0.1:$PORT -cert server.crt -key server.key -quiet -www -naccept 2 > /dev/null 2>&1 & pid=$!; for n in $(seq 100); do grep -q "$(printf '0100007F:%04X 00000000:0000 0A' $PORT)" /proc/net/tcp && break; sleep 0.05; done; }
serve; for v in tls1_2 tls1_3; do printf 'GET / HTTP/1.0\r\n\r\n' | $RUN openssl s_client -connect localhost:$PORT -servername localhost -CAfile server.crt -verify_return_error -$v -ign_eof 2> /dev/null | grep -E '^(HTTP|subject|issuer|Verif|New|    Protocol|Server public)' | sort -u; done; wait $pid 2> /dev/null || true
serve $RUN; for v in tls1_2 tls1_3; do printf 'GET / HTTP/1.0\r\n\r\n' | openssl s_client -connect localhost:$PORT -servername localhost -CAfile server.crt -verify_return_error -$v -ign_eof 2> /dev/null | grep -E '^(HTTP|subject|issuer|Verif|New|    Protocol|Server public)' | sort -u; done; wait $pid 2> /dev/null || true
o s_client -connect 127.0.0.1:1 < /dev/null | grep -c errno=111
rm -f errors *.key *.pub *.crt *.csr *.p12 sig box
