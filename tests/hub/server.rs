//! A hub of the tests' own: it lists a folder as org/tiny, sends for large files to another host, and does what it is told
//! to do wrong.

use sha1::Sha1;
use sha2::{Digest, Sha256};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// A request as it came.
#[derive(Debug, Clone, Default)]
pub struct Asked {
    pub method: String,
    pub path: String,
    pub host: String,
    pub authorization: Option<String>,
    /// The first byte that is wanted.
    pub from: Option<usize>,
    /// Requests for this path with this method before.
    pub before: usize,
}

impl Asked {
    /// It asked for the contents of a file whose name has `part`.
    pub fn gets(&self, part: &str) -> bool {
        self.method == "GET" && self.path.contains(part)
    }
}

/// What a hub does instead of answering well.
#[derive(Debug, Clone)]
pub enum Odd {
    /// A status, and more headers.
    Status(u16, &'static str),
    /// The contents end after so many bytes.
    Cut(usize),
    /// They begin at the first byte, whatever was asked for.
    Anew,
    /// So many bytes come behind them.
    Longer(usize),
    /// What was asked for is of another commit.
    Commit(&'static str),
    /// Other contents of the same length.
    Spoilt,
    /// The etag of a file.
    Etag(&'static str),
    /// The size of a large file.
    Size(u64),
    Slow(Duration),
    /// These files alone are listed.
    Lists(&'static [&'static str]),
}

type Oddities = dyn Fn(&Asked) -> Option<Odd> + Send + Sync;

pub struct Hub {
    pub endpoint: String,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Hub {
    /// Serves `folder` for as long as the program runs.
    pub fn of(folder: &Path, odd: impl Fn(&Asked) -> Option<Odd> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (folder, odd): (PathBuf, Arc<Oddities>) = (folder.to_owned(), Arc::new(odd));
        let told = asked.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (folder, odd, told) = (folder.clone(), odd.clone(), told.clone());
                std::thread::spawn(move || {
                    let stream = stream.unwrap();
                    let Some(asked) = read(&stream, &told) else {
                        return;
                    };
                    let odd = odd(&asked);
                    // Whoever asked may go away.
                    let _ = answer(stream, &folder, port, &asked, odd);
                });
            }
        });
        Self {
            endpoint: format!("http://127.0.0.1:{port}"),
            asked,
        }
    }

    pub fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }
}

fn read(stream: &TcpStream, told: &Mutex<Vec<Asked>>) -> Option<Asked> {
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    let first = lines.next()?;
    let mut words = first.split(' ').map(str::to_owned);
    let mut asked = Asked {
        method: words.next()?,
        path: words.next()?,
        ..Asked::default()
    };
    for line in lines.take_while(|line| !line.is_empty()) {
        let (name, value) = line.split_once(": ")?;
        match &*name.to_ascii_lowercase() {
            "host" => asked.host = value.to_owned(),
            "authorization" => asked.authorization = Some(value.to_owned()),
            "range" => {
                asked.from = value
                    .strip_prefix("bytes=")?
                    .strip_suffix('-')?
                    .parse()
                    .ok()
            }
            _ => {}
        }
    }
    let mut told = told.lock().unwrap();
    let same = |then: &&Asked| (&then.method, &then.path) == (&asked.method, &asked.path);
    asked.before = told.iter().filter(same).count();
    told.push(asked.clone());
    Some(asked)
}

fn answer(
    mut to: TcpStream,
    folder: &Path,
    port: u16,
    asked: &Asked,
    odd: Option<Odd>,
) -> std::io::Result<()> {
    let commit = match odd {
        Some(Odd::Commit(commit)) => commit,
        _ => COMMIT,
    };
    let mut send = |status: u16, headers: &str, body: &[u8], bytes: usize| -> std::io::Result<()> {
        let length = body.len();
        write!(
            to,
            "HTTP/1.1 {status} X\r\nconnection: close\r\nx-repo-commit: {commit}\r\ncontent-length: {length}\r\n{headers}\r\n"
        )?;
        if asked.method == "HEAD" {
            Ok(())
        } else {
            to.write_all(&body[..bytes.min(length)])
        }
    };
    match odd {
        Some(Odd::Status(status, headers)) => return send(status, headers, b"no", 2),
        Some(Odd::Slow(time)) => std::thread::sleep(time),
        _ => {}
    }
    let there = || {
        let entries = std::fs::read_dir(folder).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.collect::<Vec<_>>()
    };
    if asked.path.starts_with("/api/models/org/tiny/revision/") {
        let files = match odd {
            Some(Odd::Lists(files)) => files.iter().map(|&file| file.to_owned()).collect(),
            _ => there(),
        };
        let siblings = files
            .iter()
            .map(|file| serde_json::json!({"rfilename": file}));
        let siblings: Vec<_> = siblings.collect();
        let list =
            serde_json::json!({"id": "org/tiny", "sha": commit, "siblings": siblings}).to_string();
        return send(200, "", list.as_bytes(), list.len());
    }
    // How the hub's own library lists them.
    if asked
        .path
        .starts_with(&format!("/api/models/org/tiny/tree/{COMMIT}?"))
    {
        let files = there();
        let files = files.iter().map(|file| {
            let size = folder.join(file).metadata().unwrap().len();
            serde_json::json!({"type": "file", "path": file, "oid": "0", "size": size})
        });
        let list = serde_json::Value::Array(files.collect()).to_string();
        return send(200, "", list.as_bytes(), list.len());
    }
    let resolve = format!("/org/tiny/resolve/{COMMIT}/");
    let elsewhere = asked.path.strip_prefix("/elsewhere/");
    let Some(file) = asked.path.strip_prefix(&resolve).or(elsewhere) else {
        return send(404, "", b"no", 2);
    };
    let Ok(mut contents) = std::fs::read(folder.join(file)) else {
        return send(404, "", b"no", 2);
    };
    let etag: String = Sha256::digest(&contents)
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect();
    let etag = match odd {
        Some(Odd::Etag(etag)) => etag,
        _ => &etag,
    };
    if file.ends_with(".safetensors") && elsewhere.is_none() {
        let length = match odd {
            Some(Odd::Size(bytes)) => bytes,
            _ => contents.len() as u64,
        };
        let headers = format!(
            "x-linked-etag: \"{etag}\"\r\nx-linked-size: {length}\r\nlocation: http://localhost:{port}/elsewhere/{file}\r\n"
        );
        return send(302, &headers, b"", 0);
    }
    // For small files the hub gives the hash that git knows them by.
    let of_git = git_hash(&contents);
    let etag = match elsewhere {
        None if etag.len() == 64 => &of_git,
        _ => etag,
    };
    let bytes = match odd {
        Some(Odd::Cut(bytes)) => bytes,
        _ => usize::MAX,
    };
    match odd {
        Some(Odd::Spoilt) => contents[0] ^= 1,
        Some(Odd::Longer(bytes)) => contents.resize(contents.len() + bytes, 0),
        _ => {}
    }
    let header = format!("etag: \"{etag}\"\r\n");
    let length = contents.len();
    match asked.from.filter(|_| !matches!(odd, Some(Odd::Anew))) {
        None => send(200, &header, &contents, bytes),
        Some(from) if from < length => {
            let range = format!("content-range: bytes {from}-{}/{length}\r\n", length - 1);
            send(206, &(header + &range), &contents[from..], bytes)
        }
        Some(_) => send(416, &header, b"", 0),
    }
}

/// What `git hash-object` says of a file.
pub fn git_hash(contents: &[u8]) -> String {
    let mut hash = Sha1::new_with_prefix(format!("blob {}\0", contents.len()));
    hash.update(contents);
    let hex = |byte: &u8| format!("{byte:02x}");
    hash.finalize().iter().map(hex).collect()
}
