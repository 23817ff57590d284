//! Slurm: munged, slurmctld and slurmd of this machine as a cluster of one node; one task of an array is killed in the
//! middle and requeued.

use crate::common::program::{Ended, binary, end, run};
use crate::common::rows::text;
use crate::{Job, MODEL, OPTIONS, SHARDS, kill, script, wait_for};
use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// The programs of Debian's slurmctld, slurmd, slurm-client and munge.
const PROGRAMS: [&str; 4] = ["munged", "slurmctld", "slurmd", "sbatch"];

/// A cluster of one node, whose daemons end with it.
struct Cluster<'a> {
    folder: &'a Path,
    daemons: Vec<Child>,
}

impl<'a> Cluster<'a> {
    fn start(folder: &'a Path) -> Self {
        let host = end(Command::new("hostname").arg("-s"), "").good();
        let host = host.trim();
        let ports: Vec<u16> = (0..2)
            .map(|_| TcpListener::bind("127.0.0.1:0").unwrap())
            .collect::<Vec<_>>()
            .iter()
            .map(|listener| listener.local_addr().unwrap().port())
            .collect();
        let at = folder.display();
        for name in ["state", "spool"] {
            fs::create_dir(folder.join(name)).unwrap();
        }
        // Munge wants a key that nobody else reads.
        let key = folder.join("munge.key");
        fs::write(&key, [7; 64]).unwrap();
        end(Command::new("chmod").arg("600").arg(&key), "").good();
        // cred_expire: a job that is requeued may start when credentials of its last run are no longer valid.
        let settings = format!(
            "ClusterName=tests\nSlurmctldHost={host}(127.0.0.1)\nSlurmUser=root\nSlurmdUser=root\n\
             AuthType=auth/munge\nCredType=cred/munge\nAuthInfo=socket={at}/munge.sock,cred_expire=5\n\
             SlurmctldPort={}\nSlurmdPort={}\nSlurmctldPidFile={at}/slurmctld.pid\nSlurmdPidFile={at}/slurmd.pid\n\
             StateSaveLocation={at}/state\nSlurmdSpoolDir={at}/spool\nProctrackType=proctrack/linuxproc\n\
             TaskPlugin=task/none\nMpiDefault=none\nReturnToService=2\nSlurmdParameters=config_overrides\n\
             SelectType=select/cons_tres\nSelectTypeParameters=CR_CPU\nSchedulerParameters=bf_interval=1,sched_interval=2\n\
             NodeName={host} NodeAddr=127.0.0.1 CPUs={SHARDS} State=UNKNOWN\n\
             PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP\n",
            ports[0], ports[1]
        );
        fs::write(folder.join("slurm.conf"), settings).unwrap();
        let mut cluster = Self {
            folder,
            daemons: Vec::new(),
        };
        let munge = [
            "munge.sock",
            "munge.key",
            "munged.pid",
            "munged.log",
            "munged.seed",
        ]
        .map(|name| folder.join(name));
        let options = ["socket", "key-file", "pid-file", "log-file", "seed-file"];
        let options = options
            .iter()
            .zip(&munge)
            .map(|(option, path)| format!("--{option}={}", path.display()));
        let options: Vec<String> = options.collect();
        cluster.daemon(
            "munged",
            &[
                &["--force", "--foreground"],
                &options.iter().map(String::as_str).collect::<Vec<_>>()[..],
            ]
            .concat(),
        );
        wait_for("munged", || munge[0].exists().then_some(()));
        cluster.daemon("slurmctld", &["-D"]);
        cluster.daemon("slurmd", &["-D"]);
        wait_for("a node that is idle", || {
            let said = end(cluster.command("sinfo").args(["-h", "-o", "%T"]), "");
            (said.stdout.trim() == "idle").then_some(())
        });
        cluster
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("SLURM_CONF", self.folder.join("slurm.conf"));
        command
    }

    fn daemon(&mut self, program: &str, options: &[&str]) {
        let log = fs::File::create(self.folder.join(format!("{program}.out"))).unwrap();
        let mut command = self.command(program);
        command
            .args(options)
            .stdin(Stdio::null())
            .stderr(log)
            .stdout(Stdio::null());
        self.daemons.push(command.spawn().unwrap());
    }
}

impl Drop for Cluster<'_> {
    fn drop(&mut self) {
        for daemon in self.daemons.iter_mut().rev() {
            // One that has ended has left why in its log.
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }
}

/// Whether this machine can be a cluster. Where it cannot the test says so and is skipped, unless TAILGRAPH_NEED_SLURM is
/// set, as in .ci/run.
fn is_there() -> bool {
    let missing = |program: &&&str| {
        let found = Command::new("sh")
            .arg("-c")
            .arg(format!("command -v {program}"))
            .output();
        !found.is_ok_and(|found| found.status.success())
    };
    // SAFETY: takes and changes nothing.
    let root = unsafe { libc::geteuid() } == 0;
    let why = match PROGRAMS.iter().find(missing) {
        Some(program) => format!(
            "{program} is not there: Debian's slurmctld, slurmd, slurm-client and munge have it"
        ),
        None if !root => "only root may start slurmd".to_owned(),
        None => return true,
    };
    assert!(std::env::var_os("TAILGRAPH_NEED_SLURM").is_none(), "{why}");
    eprintln!("Slurm: skipped, {why}");
    false
}

#[test]
fn a_task_of_slurm_that_was_killed_is_requeued_and_goes_on() {
    if !is_there() {
        return;
    }
    let job = Job::new(60);
    let folder = job.at("cluster");
    fs::create_dir(&folder).unwrap();
    let cluster = Cluster::start(&folder);
    let log = |index: usize| job.at(&format!("log.{index}"));
    let array = format!("--array=0-{}", SHARDS - 1);
    let mut submit = cluster.command("sbatch");
    submit
        .args(["--parsable", &array, "--output"])
        .arg(job.at("log.%a"))
        .arg(script("slurm.sh"))
        .args(OPTIONS)
        .env("TAILGRAPH", binary())
        .env("MODEL", MODEL)
        .env("INPUT", job.input())
        .env("OUTPUT", job.output());
    let array = end(&mut submit, "").good();
    let array = array.trim();
    kill(job.in_the_middle(1));
    // Slurm has it wait for two minutes, so that slurmd no longer refuses it for what was revoked of its last run. Here
    // that takes less, by cred_expire.
    wait_for("a task that is requeued", || {
        let task = format!("{array}_1");
        let said = end(
            cluster
                .command("squeue")
                .args(["-h", "-j", &task, "-o", "%T"]),
            "",
        );
        let soon = ["update", &format!("JobId={task}"), "StartTime=now+7"];
        let waits = said.stdout.trim() == "PENDING";
        (waits && end(cluster.command("scontrol").args(soon), "").code == 0).then_some(())
    });
    wait_for("an empty queue", || {
        let said = end(cluster.command("squeue").args(["-h", "-o", "%T"]), "");
        said.stdout.trim().is_empty().then_some(())
    });
    for index in 0..SHARDS {
        let jobs = end(cluster.command("scontrol").args(["show", "job"]), "").stdout;
        let shard = job.shard(index);
        assert!(shard.exists(), "{} is missing: {jobs}", shard.display());
    }
    let merged: Ended = run(&[
        "merge",
        text(&job.shard(0)),
        text(&job.shard(1)),
        "--output",
        text(&job.output()),
    ]);
    merged.good();
    let said = fs::read_to_string(log(1)).unwrap();
    assert!(!fs::read_to_string(log(0)).unwrap().contains("kept"));
    job.is_that_of_one_run(&said);
}
