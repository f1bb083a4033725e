#!/usr/bin/env bash
# Does a sweep on Slurm, with a task that is requeued half-way, give what an undisturbed sweep here gives? Starts a
# slurmctld, a slurmd and a munged of its own in a folder that goes away; works as root and as anyone, without systemd.
#   tests/slurm.sh MOESIM; exit 77 where Slurm is not installed or finds no cgroups
set -euo pipefail
for program in munged munge slurmctld slurmd sbatch squeue scontrol scancel sqlite3; do
  PATH=$PATH:/usr/sbin command -v "$program" >/dev/null || { echo "skipped: no $program"; exit 77; }
done
PATH=$PATH:/usr/sbin
moesim=$(realpath "$1")
source_dir=$(realpath "$(dirname "$0")/..")
umask 022
# Short: the path of a socket has at most 107 bytes.
work=$(mktemp -d /tmp/moesim-slurm.XXXXXX)
chmod 755 "$work"
cd "$work"
munged='' slurmctld='' slurmd=''

slurm() { timeout 10 "$@"; } # clients wait for ever where the controller is gone

stop() { # PID
  kill -TERM "$1" 2>/dev/null || return 0
  for _ in {1..50}; do kill -0 "$1" 2>/dev/null || return 0; sleep 0.1; done
  kill -KILL "$1" 2>/dev/null || true
}

finish() {
  local code=$?
  set +e
  trap - EXIT INT TERM
  # Before slurmd, which would leave its jobs running.
  if [[ -n $slurmd ]] && kill -0 "$slurmctld"; then
    slurm scancel --user="$(id -un)"
    for _ in {1..50}; do [[ -z $(slurm squeue -h) ]] && break; sleep 0.1; done
  fi
  for process in $slurmd $slurmctld $munged; do stop "$process"; wait "$process" 2>/dev/null; done
  ((code == 0)) || tail -n 30 ./*.log slurm.sqlite.slurm/log-* >&2 2>/dev/null
  rm -rf "$work"
  exit "$code"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# wait_for SECONDS WHAT COMMAND..
wait_for() {
  local end=$((SECONDS + $1)) what=$2
  shift 2
  until "$@" >/dev/null 2>&1; do
    ((SECONDS < end)) || { echo "FAILED: $what" >&2; exit 1; }
    sleep 0.1
  done
}

# A cluster of one node. Munge wants its key to itself and its socket in a folder that all may enter.
install -d -m 700 private
install -d -m 755 socket
(umask 077 && head -c 128 /dev/urandom >private/key)
munged --force --foreground --key-file="$work/private/key" --seed-file="$work/private/seed" --num-threads=2 \
  --socket="$work/socket/munge" --pid-file="$work/private/pid" --log-file="$work/private/log" >munged.log 2>&1 &
munged=$!
wait_for 10 "munged does not answer" munge -S "$work/socket/munge" -n

free_port() { # the first from $1 on that nothing listens on
  local port=$1
  while (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do port=$((port + 1)); done
  echo "$port"
}
controller_port=$(free_port $((20000 + $$ % 5000)))
node_port=$(free_port $((controller_port + 1)))
host=$(uname -n)
host=${host%%.*}
me=$(id -un)
mkdir state spool
# cred_expire: a requeued job starts only when its first credential has expired, after two minutes if not said; 5 s is
# the least. linuxproc and none: no cgroups in a container. config_overrides: more cores than there are.
cat >slurm.conf <<CONF
ClusterName=moesim
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$controller_port
SlurmdPort=$node_port
SlurmUser=$me
SlurmdUser=$me
AuthType=auth/munge
CryptoType=crypto/munge
AuthInfo=socket=$work/socket/munge,cred_expire=5
StateSaveLocation=$work/state
SlurmdSpoolDir=$work/spool
SlurmctldPidFile=$work/slurmctld.pid
SlurmdPidFile=$work/slurmd.pid
SlurmctldLogFile=$work/slurmctld.log
SlurmdLogFile=$work/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
JobRequeue=1
KillWait=2
CompleteWait=0
InactiveLimit=0
MailProg=/bin/true
NodeName=$host NodeAddr=127.0.0.1 CPUs=4 RealMemory=512 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
CONF
export SLURM_CONF=$work/slurm.conf
slurmctld -D -c >slurmctld.out.log 2>&1 &
slurmctld=$!
slurmd -D -c >slurmd.out.log 2>&1 &
slurmd=$!
# Many containers mount no cgroups, without which slurmd ends.
no_cgroups() { grep -Eqsi 'error:.*cgroup|no filesystem mounted on .*cgroup' slurmd.log slurmd.out.log; }
is_idle() { [[ $(timeout 3 sinfo -h -o %T) == idle ]]; }
is_settled() { is_idle || ! kill -0 "$slurmd"; }
wait_for 60 "the node is not idle" is_settled
if ! is_idle; then
  if no_cgroups; then echo "skipped: slurmd finds no cgroups here; its log follows"; exit 77; fi
  echo "FAILED: slurmd ended" >&2
  exit 1
fi

# Points of about a second and one that cannot be run; three tasks, one requeued when it has a point and not all.
cat >sweep.json <<JSON
{"base": "$source_dir/tests/tiny.json", "blocks": [
  {"set": {"/workload/requests": 2500, "/workload/lengths/output": 40},
   "axes": {"/workload/lengths/prompt": [4, 6, 8, 10, 12, 14, 16, 18, 20]}},
  {"axes": {"/parallel/dp": [16]}}]}
JSON
"$moesim" sweep "$work/sweep.json" -o here.sqlite 2>/dev/null | tail -n 3
"$moesim" sweep sweep.json -o slurm.sqlite --launcher slurm --tasks 3 --partition main --time 5 | tee submitted
array=$(grep -o 'array [0-9]*' submitted | grep -o '[0-9]*')
shard=slurm.sqlite.slurm/shard-2-of-3.sqlite
count() { sqlite3 -cmd ".timeout 5000" "file:$1?mode=ro" "SELECT count(*) FROM points WHERE status = '$2'"; }
is_half_way() { (($(count "$shard" done) > 0)); }
wait_for 240 "no point of the task finished" is_half_way
slurm scontrol requeue "${array}_2"
(($(count "$shard" pending) > 0)) || { echo "FAILED: the task was done before it was requeued" >&2; exit 1; }
is_merged() { [[ -z $(slurm squeue -h) && -s slurm.sqlite ]]; }
wait_for 240 "the merge job did not end" is_merged

rows() { sqlite3 "$1" "SELECT config, status, error, report FROM points ORDER BY config_hash"; }
cmp <(rows here.sqlite) <(rows slurm.sqlite) || { echo "FAILED: Slurm gives another result" >&2; exit 1; }
(($(rows slurm.sqlite | wc -l) == 10)) || { echo "FAILED: not 10 points" >&2; exit 1; }
grep -q "points were done before" "slurm.sqlite.slurm/log-$array-2.txt" ||
  { echo "FAILED: the requeued task began anew" >&2; exit 1; }
echo "all good in $SECONDS s"
