#!/usr/bin/env bash
# Makes sure that what pip cannot install is there. Nothing is changed when it already is.
#   system-packages.sh venv PYTHON   the venv and ensurepip modules of that interpreter (Debian ships them apart)
#   system-packages.sh postgres      the PostgreSQL server programs, for the benches: found, never started here
#   system-packages.sh java          a JDK and Maven, for the HBase of the tests and of `viewtide cluster up`
set -euo pipefail

has_venv() {
    "$1" -c 'import ensurepip, venv' 2>/dev/null
}

has_postgres() {
    local programs
    command -v initdb >/dev/null && command -v postgres >/dev/null && return 0
    for programs in /usr/lib/postgresql/*/bin; do
        [ -x "$programs/initdb" ] && [ -x "$programs/postgres" ] && return 0
    done
    return 1
}

has_java() {
    command -v java >/dev/null && command -v javac >/dev/null && command -v mvn >/dev/null
}

# give_up REASON PACKAGE...
give_up() {
    local reason=$1
    shift
    {
        echo "$reason is missing."
        echo "Install it as root and run make again, on Debian or Ubuntu:  apt-get install $*"
    } >&2
    exit 1
}

# prepare REASON PACKAGE...: goes on only where packages can be installed, else says what to install.
prepare() {
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        give_up "$@"
    fi
    echo "$1 is missing: installing it with apt-get"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
}

install() {
    apt-get install -qq -y --no-install-recommends "$@" >/dev/null
}

case "${1:-}" in
venv)
    python=${2:?"usage: system-packages.sh venv PYTHON"}
    if ! has_venv "$python"; then
        package=$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
        prepare "The venv module of $python" "$package"
        install "$package"
        has_venv "$python" || give_up "The venv module of $python (still, after installing $package)" python3-venv
    fi
    ;;
postgres)
    if ! has_postgres; then
        prepare "The PostgreSQL server" postgresql
        # postgresql-common first: its setting keeps the server package from creating and starting a cluster.
        if [ ! -e /etc/postgresql-common/createcluster.conf ]; then
            install postgresql-common
            sed -i -E 's/^#?create_main_cluster.*/create_main_cluster = false/' /etc/postgresql-common/createcluster.conf
        fi
        server=postgresql-15
        apt-cache show "$server" >/dev/null 2>&1 || server=postgresql
        install "$server"
        has_postgres || give_up "The PostgreSQL server (still, after installing $server)" postgresql
    fi
    ;;
java)
    if ! has_java; then
        jdk=openjdk-17-jdk-headless
        prepare "A JDK with Maven" "$jdk" maven
        apt-cache show "$jdk" >/dev/null 2>&1 || jdk=default-jdk-headless
        install "$jdk" maven
        has_java || give_up "A JDK with Maven (still, after installing $jdk)" "$jdk" maven
    fi
    ;;
*)
    echo "usage: system-packages.sh venv PYTHON | postgres | java" >&2
    exit 2
    ;;
esac
