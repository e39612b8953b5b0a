// A block manager with fork and prefix cache that speaks kvproof's protocol. Standard library only.
//   rustc -O -o server server.rs && kvproof conformance --impl process:./server
mod json;
mod manager;

use json::{map, write, Failed, Json, Json::*, Reader};
use manager::Manager;
use std::io::{self, BufRead, Write};
use std::time::Instant;

fn describe(manager: &Manager) -> Json {
    let text = |t: &str| Text(t.to_string());
    let names = ["fork", "copies", "refcount", "multi", "defer", "prefix"];
    let named = names[..5 + manager.cache as usize].iter().map(|n| text(n)).collect();
    map(vec![
        ("name", text("sample in Rust")),
        ("capabilities", List(named)),
        ("guard", text("tokens")), // a hit has compared every token
        ("policy", map(vec![("evict", text("lru-tail"))])),
    ])
}

fn answered(result: Result<Json, Failed>) -> Json {
    match result {
        Ok(value) => map(vec![("ok", value)]),
        Err((err, msg)) => map(vec![("err", Text(err.to_string())), ("msg", Text(msg))]),
    }
}

fn name_of(message: &Json) -> &str {
    if let Text(op) = message.get("op") {
        op
    } else {
        ""
    }
}

fn answer(manager: &mut Option<Manager>, message: &Json) -> Result<Json, Failed> {
    if name_of(message) == "open" {
        let opened = Manager::open(message)?;
        return Ok(describe(manager.insert(opened)));
    }
    let manager = manager.as_mut().ok_or(("Refused", "open comes first".to_string()))?;
    let List(ops) = message.get("ops") else { return manager.call(name_of(message), message) };
    let start = Instant::now(); // a run: all of it is parsed
    let results: Vec<_> = ops.iter().map(|one| manager.call(name_of(one), one)).collect();
    let ns = start.elapsed().as_nanos() as i64;
    let results = results.into_iter().map(answered).collect();
    Ok(map(vec![("results", List(results)), ("ns", Int(ns))]))
}

fn main() -> io::Result<()> {
    let mut manager = None;
    for line in io::stdin().lock().lines() {
        let result = match Reader(line?.as_bytes(), 0).value() {
            Some(message) => answer(&mut manager, &message),
            None => Err(("BadInput", "not JSON".to_string())),
        };
        let mut out = String::new();
        write(&answered(result), &mut out);
        out.push('\n');
        let mut stdout = io::stdout().lock();
        stdout.write_all(out.as_bytes())?;
        stdout.flush()?;
    }
    Ok(())
}
