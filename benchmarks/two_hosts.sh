#!/bin/bash
# Two "hosts" on one machine: network namespaces joined by a cable (veth) of 1 Gbit/s, one rank on each, MPI (MPICH) over TCP.
#
#     benchmarks/two_hosts.sh python -m benchmarks.data_parallel          (as root; RATE=10gbit for another cable)
#
# For what only a network shows: whether messages travel while ranks compute.
set -e
if [[ $1 == --start ]]; then  # called by mpiexec in place of ssh: [options] host command
    shift
    while [[ $1 == -* ]]; do shift; done
    host=mnpar${1##*.}; shift
    exec ip netns exec "$host" unshare --uts /bin/sh -c "hostname $host; $*"
fi
[[ $EUID == 0 ]] || { echo "network namespaces need root"; exit 1; }
cleanup() { ip netns del mnpar1; ip netns del mnpar2; rm -f "$launcher"; }
trap cleanup EXIT
launcher=$(mktemp)
printf '#!/bin/bash\nexec bash %q --start "$@"\n' "$(realpath "$0")" > "$launcher"
chmod +x "$launcher"
ip netns add mnpar1
ip netns add mnpar2
ip link add cable netns mnpar1 type veth peer name cable netns mnpar2
for n in 1 2; do
    ip -n mnpar$n addr add 10.99.0.$n/24 dev cable
    ip -n mnpar$n link set lo up
    ip -n mnpar$n link set cable up
    ip netns exec mnpar$n tc qdisc add dev cable root tbf rate "${RATE:-1gbit}" burst 64kb latency 50ms
done
until ip -n mnpar1 link show cable | grep -q LOWER_UP && ip -n mnpar2 link show cable | grep -q LOWER_UP; do sleep 0.1; done
ip netns exec mnpar1 mpiexec -launcher ssh -launcher-exec "$launcher" -hosts 10.99.0.1:1,10.99.0.2:1 -n 2 \
    -genv UCX_TLS tcp,self -genv UCX_NET_DEVICES cable -genv GLOO_SOCKET_IFNAME cable "$@"
