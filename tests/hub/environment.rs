//! What the environment says of the hub, under the names that Python's libraries read.

use crate::common::program::end;
use crate::rig::Rig;
use crate::server::{COMMIT, Hub, Odd};
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::symlink;
use std::process::{Command, Stdio};

#[test]
fn a_cache_is_found_by_every_name() {
    let rig = Rig::new();
    rig.run(&Hub::of(&rig.model, |_| None)).good();
    // An editor or `echo` ends the line.
    fs::write(rig.in_cache().join("refs/main"), format!("{COMMIT}\n")).unwrap();
    let dir = rig.dir.path();
    fs::create_dir(dir.join(".cache")).unwrap();
    symlink(rig.home(), dir.join(".cache/huggingface")).unwrap();
    symlink(rig.home(), dir.join("huggingface")).unwrap();
    let hub = rig.home().join("hub").to_str().unwrap().to_owned();
    let expected = rig.expected();
    let mut offline = ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"]
        .into_iter()
        .cycle();
    for variables in [
        &[][..],
        &[("HF_HOME", "~/home")],
        &[("HF_HOME", "$HOME/home")],
        &[("HF_HOME", "${HOME}/$LEFT/../home"), ("LEFT", "home")],
        &[("HF_HUB_CACHE", &hub), ("HUGGINGFACE_HUB_CACHE", "/none")],
        &[("HUGGINGFACE_HUB_CACHE", &hub), ("HF_HOME", "/none")],
        &[("HF_HUB_CACHE", "~/home/hub")],
        &[("XDG_CACHE_HOME", "~")],
    ] {
        let mut run = rig.command("org/tiny", "http://127.0.0.1:9");
        run.env_remove("HF_HOME").env("HOME", dir);
        run.env(offline.next().unwrap(), "True");
        run.envs(variables.iter().copied());
        assert_eq!(end(&mut run, "").good(), expected, "{variables:?}");
    }
    let mut run = rig.command("org/none", "http://127.0.0.1:9");
    run.env("HF_HUB_OFFLINE", "0")
        .env("TRANSFORMERS_OFFLINE", "1");
    end(&mut run, "").fails_in_a_line(1, &["cannot be reached"]);
    let mut run = rig.command("org/tiny", "");
    end(run.env("HF_HUB_CACHE", "~nobody/hub"), "")
        .fails_in_a_line(2, &["\"~nobody/hub\"", "HF_HUB_CACHE"]);
}

#[test]
fn a_token_is_found_by_every_name() {
    let rig = Rig::new();
    let hub = Hub::of(&rig.model, |_| Some(Odd::Status(404, "")));
    fs::create_dir(rig.home()).unwrap();
    fs::write(rig.home().join("token"), "hf_kept\n").unwrap();
    fs::write(rig.dir.path().join("secret"), " hf_secret\r\n").unwrap();
    let implicit = "HF_HUB_DISABLE_IMPLICIT_TOKEN";
    for (variables, token) in [
        (&[][..], Some("hf_kept")),
        (
            &[("HF_TOKEN", "hf_a"), ("HUGGING_FACE_HUB_TOKEN", "hf_b")],
            Some("hf_a"),
        ),
        (&[("HUGGING_FACE_HUB_TOKEN", "hf_b")], Some("hf_b")),
        (
            &[("HF_TOKEN", ""), ("HF_TOKEN_PATH", "$HOME/secret")],
            Some("hf_secret"),
        ),
        (&[("HF_TOKEN_PATH", "~/none")], None),
        (&[("HF_TOKEN", "hf_a"), (implicit, "yes")], None),
        (&[("HF_TOKEN", "hf_a"), (implicit, "no")], Some("hf_a")),
    ] {
        let before = hub.asked().len();
        let mut run = rig.command("org/tiny", &hub.endpoint);
        run.env("HOME", rig.dir.path())
            .envs(variables.iter().copied());
        end(&mut run, "").fails_in_a_line(1, &["answered 404"]);
        let asked = hub.asked().split_off(before);
        assert!(!asked.is_empty());
        for asked in asked {
            let expected = token.map(|token| format!("Bearer {token}"));
            assert_eq!(asked.authorization, expected, "{variables:?}");
        }
    }
}

/// Another port is another's.
#[test]
fn a_token_goes_to_no_other_port() {
    let rig = Rig::new();
    let other = Hub::of(&rig.model, |_| None);
    let to = format!(
        "location: {}/api/models/org/tiny/revision/main\r\n",
        other.endpoint
    );
    let to: &str = to.leak();
    let hub = Hub::of(&rig.model, move |asked| {
        asked.gets("/api/").then_some(Odd::Status(307, to))
    });
    let mut run = rig.command("org/tiny", &hub.endpoint);
    assert_eq!(end(run.env("HF_TOKEN", "hf_a"), "").good(), rig.expected());
    assert_eq!(other.asked().len(), 1);
    assert_eq!(other.asked()[0].authorization, None);
    let shown = |asked: &crate::server::Asked| asked.authorization.is_some();
    assert!(
        hub.asked()
            .iter()
            .filter(|asked| asked.host.starts_with("127"))
            .all(shown)
    );
}

#[test]
fn a_password_of_the_endpoint_is_sent_and_never_shown() {
    let rig = Rig::new();
    let with = |endpoint: &str| endpoint.replace("://", "://me:swordfish%40secret@");
    let hub = Hub::of(&rig.model, |_| None);
    let mut run = rig.command("org/tiny", &with(&hub.endpoint));
    assert_eq!(end(run.env("HF_TOKEN", "hf_a"), "").good(), rig.expected());
    for asked in hub.asked() {
        // A user and password in the address go before a token, which is what Python's libraries do: me:swordfish@secret in
        // base64.
        let is_hub = asked.host.starts_with("127.0.0.1");
        let expected = is_hub.then_some("Basic bWU6c3dvcmRmaXNoQHNlY3JldA==");
        assert_eq!(asked.authorization.as_deref(), expected, "{asked:?}");
    }
    fs::remove_dir_all(rig.home()).unwrap();
    let mut endpoints: Vec<String> = [
        "http://127.0.0.1:9",
        "http://",
        "ftp://host",
        "http://ho st",
        "http://host/behind@secret/more",
    ]
    .map(with)
    .into();
    endpoints.push("me:swordfish%40secret@host".to_owned());
    endpoints.push("http://me:swordfish/secret@host".to_owned());
    for odd in [
        Odd::Status(401, ""),
        Odd::Status(403, ""),
        Odd::Status(404, ""),
        Odd::Status(418, ""),
        Odd::Status(429, "retry-after: 1\r\n"),
        Odd::Status(500, ""),
        Odd::Status(302, "location: ftp://me:swordfish@secret/\r\n"),
        Odd::Status(302, "location: http://me:secret@127.0.0.1:9/\r\n"),
        Odd::Status(302, "location: /api/models\r\n"),
        Odd::Status(200, ""),
        Odd::Lists(&["config.json"]),
    ] {
        let hub = Hub::of(&rig.model, move |_| Some(odd.clone()));
        endpoints.push(with(&hub.endpoint));
    }
    for endpoint in endpoints {
        let ended = end(&mut rig.command("org/tiny", &endpoint), "");
        assert!([1, 2].contains(&ended.code), "{endpoint}: {}", ended.stderr);
        for part in ["swordfish", "secret"] {
            assert!(!ended.stderr.contains(part), "{endpoint}: {}", ended.stderr);
        }
    }
}

#[test]
fn certificates_of_ones_own_are_trusted_by_every_name() {
    let rig = Rig::new();
    let dir = rig.dir.path();
    let made = Command::new("openssl")
        .args("req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out own.pem -days 30 -subj /CN=localhost".split(' '))
        .args("-addext basicConstraints=critical,CA:FALSE -addext subjectAltName=DNS:localhost".split(' '))
        .current_dir(dir)
        .stderr(Stdio::null())
        .status();
    if !made.is_ok_and(|made| made.success()) {
        eprintln!("skipped: there is no openssl to make a certificate");
        return;
    }
    let mut server = Command::new("openssl")
        .args("s_server -accept 127.0.0.1:0 -www -cert own.pem -key key.pem".split(' '))
        .current_dir(dir)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let lines = BufReader::new(server.stdout.take().unwrap()).lines();
    let accepts = lines
        .map_while(Result::ok)
        .find(|line| line.starts_with("ACCEPT"));
    let accepts = accepts.unwrap();
    let (_, port) = accepts.rsplit_once(':').unwrap();
    let endpoint = format!("https://localhost:{port}");
    let own = dir.join("own.pem").to_str().unwrap().to_owned();
    fs::create_dir(dir.join("own")).unwrap();
    fs::copy(&own, dir.join("own/own.pem")).unwrap();
    let folder = dir.join("own").to_str().unwrap().to_owned();
    // The server answers with a page, which is no list of files.
    let trusted = (1, "answered with no list");
    for (name, path, (code, said)) in [
        ("LEFT", &*own, (1, "invalid peer certificate")),
        ("SSL_CERT_FILE", &own, trusted),
        ("SSL_CERT_DIR", &folder, trusted),
        ("SSL_CERT_FILE", "/none", (2, "found no certificate")),
    ] {
        let mut run = rig.command("org/tiny", &endpoint);
        end(run.env(name, path), "").fails_in_a_line(code, &[said]);
    }
    server.kill().unwrap();
    server.wait().unwrap();
}
