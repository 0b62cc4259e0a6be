#!/usr/bin/env bash
# Certificates for a cluster that speaks TLS: an authority, made once, and a folder for each host.
#
#     make.sh [--out DIR] [--at PATH] [--days N] [--renew] HOST[,NAME...] ...
#
#     make.sh scheduler,10.0.0.1 node1,10.0.0.11 node2,10.0.0.12 alice
#
# DIR (tls) has the authority, ca.pem and ca.key, which stays here, and a folder for each HOST with
# what is copied there: ca.pem, node.pem, node.key, tls.yaml. A HOST may be a person, too.
# NAMEs are further names and addresses of that host. PATH (/etc/largek/tls) is where the files will
# lie; tls.yaml says so to Dask, by DASK_CONFIG=PATH. Certificates are valid for N days (365), the
# authority for ten years. --renew replaces a host's certificate; an authority is never replaced.
set -euo pipefail
umask 077

out=tls at=/etc/largek/tls days=365 renew=no
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

fail() {
    echo "make.sh: $1" >&2
    exit 1
}

while [ $# -gt 0 ]; do
    case $1 in
    --out | --at | --days)
        [ $# -gt 1 ] || fail "$1 needs a value"
        case $1 in
        --out) out=$2 ;;
        --at) at=$2 ;;
        --days) days=$2 ;;
        esac
        shift 2
        ;;
    --renew)
        renew=yes
        shift
        ;;
    -h | --help)
        sed -n '2,/^set -e/{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
        exit 0
        ;;
    -*) fail "unknown option $1; --help lists them" ;;
    *) break ;;
    esac
done
[ $# -gt 0 ] || fail "no host is named, such as: make.sh scheduler,10.0.0.1 node1 node2"
[[ $days =~ ^[1-9][0-9]{0,4}$ ]] || fail "--days $days is no number of days"
[[ $at =~ ^/[A-Za-z0-9._/@%+=:-]*$ ]] ||
    fail "--at $at has to be an absolute path of letters, digits and ._-@%+=:"
case $(openssl version 2>/dev/null || true) in
"OpenSSL "[3-9]*) ;;
*) fail "openssl 3 or newer is needed; here is: $(openssl version 2>&1 || true)" ;;
esac
for host in "$@"; do
    [[ $host =~ ^[A-Za-z0-9]([A-Za-z0-9.:_-]|,[A-Za-z0-9])*$ ]] ||
        fail "'$host' is no HOST[,NAME...]: letters, digits and .:_- only, commas between names"
    if [ -e "$out/${host%%,*}/node.pem" ] && [ $renew = no ]; then
        fail "$out/${host%%,*} has a certificate: --renew replaces it"
    fi
done

# Nothing of the machine's own openssl.cnf: it would add extensions of its own.
plain=$'[req]\ndistinguished_name=name\n[name]\n'
new=(openssl req -x509 -config /dev/stdin -newkey ec -pkeyopt ec_paramgen_curve:P-256 -noenc -sha256)

mkdir -p "$out"
if [ ! -e "$out/ca.pem" ] && [ ! -e "$out/ca.key" ]; then
    [ $renew = no ] || fail "there is no authority in $out, so nothing to renew"
    "${new[@]}" -days 3650 -subj "/CN=largek authority $(date -u +%Y-%m-%d)" \
        -addext basicConstraints=critical,CA:TRUE,pathlen:0 \
        -addext keyUsage=critical,keyCertSign,cRLSign \
        -addext subjectKeyIdentifier=hash \
        -keyout "$out/ca.key" -out "$out/ca.pem" 2>/dev/null <<<"$plain" ||
        fail "openssl could not make an authority in $out"
    echo "$out/ca.pem: a new authority for ten years; keep $out/ca.key to yourself"
fi
[ -e "$out/ca.pem" ] && [ -e "$out/ca.key" ] ||
    fail "$out has only one of ca.pem and ca.key: bring the other back, or begin in an empty folder"

for host in "$@"; do
    folder=$out/${host%%,*}
    names=
    IFS=, read -ra parts <<<"$host"
    for name in "${parts[@]}"; do
        kind=DNS
        if [[ $name =~ ^[0-9.]+$ || $name == *:* ]]; then kind=IP; fi
        names+="${names:+,}$kind:$name"
    done
    # A cluster's own processes often meet on loopback.
    for name in DNS:localhost IP:127.0.0.1; do
        [[ ,$names, == *,$name,* ]] || names+=,$name
    done
    mkdir -p "$folder"
    "${new[@]}" -CA "$out/ca.pem" -CAkey "$out/ca.key" -days "$days" -subj "/CN=${host%%,*}" \
        -addext basicConstraints=critical,CA:FALSE \
        -addext keyUsage=critical,digitalSignature \
        -addext extendedKeyUsage=serverAuth,clientAuth \
        -addext subjectKeyIdentifier=hash \
        -addext authorityKeyIdentifier=keyid \
        -addext "subjectAltName=$names" \
        -keyout "$folder/node.key.new" -out "$folder/node.pem.new" 2>/dev/null <<<"$plain" || {
        rm -f "$folder/node.key.new" "$folder/node.pem.new"
        fail "openssl could not make a certificate for $host"
    }
    mv "$folder/node.key.new" "$folder/node.key"
    mv "$folder/node.pem.new" "$folder/node.pem"
    cp "$out/ca.pem" "$folder/ca.pem"
    sed "s|/etc/largek/tls/|${at%/}/|" "$here/tls.yaml" >"$folder/tls.yaml"
    echo "$folder: for $names, $days days; copy its files to $at on ${host%%,*}"
done
