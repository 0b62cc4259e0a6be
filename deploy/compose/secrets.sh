#!/usr/bin/env bash
# Create the keys and passwords for docker-compose.yml with openssl, each in a separate file:
#
#     secrets.sh [DIR]
#
# Files in DIR (by default, secrets): s3.json, the key for the store; credentials, the same key for
# clients (AWS_SHARED_CREDENTIALS_FILE); jupyter_token; grafana_password. Only you can enter DIR, but
# its files are readable by all users, as containers have other user ids. No file is replaced.
set -euo pipefail
umask 077

fail() {
    echo "secrets.sh: $1" >&2
    exit 1
}

case ${1-} in
-h | --help)
    sed -n '2,/^set -e/{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
    exit 0
    ;;
-*) fail "unknown option $1; --help says what there is" ;;
esac
[ $# -le 1 ] || fail "give at most one folder, not $#: $*"
out=${1-secrets}
[ ! -e "$out" ] || fail "$out is there already: take it away to have new keys"
command -v openssl >/dev/null || fail "openssl is needed, and is not here"

key=$(openssl rand -hex 10) secret=$(openssl rand -hex 20)
mkdir -p "$out"
cat >"$out/s3.json" <<END
{
  "identities": [
    {
      "name": "largek",
      "credentials": [{"accessKey": "$key", "secretKey": "$secret"}],
      "actions": ["Admin", "Read", "Write", "List", "Tagging"]
    }
  ]
}
END
printf '[default]\naws_access_key_id = %s\naws_secret_access_key = %s\n' "$key" "$secret" \
    >"$out/credentials"
# Write no newline, because it would become part of the secret.
for name in jupyter_token grafana_password; do
    printf %s "$(openssl rand -hex 16)" >"$out/$name"
done
chmod 444 "$out"/*
echo "$out: s3.json, credentials, jupyter_token, grafana_password"
