// The manager: fork, copy-on-write, and a prefix cache that gives up its least recently used block.

use crate::json::{list, map, Failed, Json, Json::*};
use std::collections::{BTreeMap, HashMap};

type Key = (u64, Vec<i64>); // name of the block before, and the tokens: an equal key is an equal history

struct Sequence {
    tokens: Vec<i64>,
    table: Vec<usize>,
    names: Vec<u64>, // of its full computed blocks
}

pub struct Manager {
    size: usize,
    pub cache: bool,
    owners: Vec<i64>,
    idle: BTreeMap<i64, usize>, // age -> block; the first is taken next, those that nobody can find before all
    age: Vec<i64>,              // of an idle block
    clock: i64,
    found: HashMap<Key, (u64, usize)>, // -> name and block
    key_of: Vec<Option<Key>>,
    last_name: u64,
    live: BTreeMap<i64, Sequence>,
}

impl Manager {
    pub fn open(message: &Json) -> Result<Manager, Failed> {
        let (blocks, size) = (message.int("num_blocks")?, message.int("block_size")?);
        if blocks < 1 || size < 1 {
            return Err(("BadInput", format!("{blocks} blocks of {size}: needs 1 or more")));
        }
        if !matches!(message.get("profile"), Null | Text(_))
            || *message.get("profile") == Text("scheduler".into())
        {
            return Err(("Unsupported", "no scheduler here".into()));
        }
        Ok(Manager {
            size: size as usize,
            cache: *message.get("cache") != Bool(false),
            owners: vec![0; blocks as usize],
            idle: (0..blocks).map(|b| (b, b as usize)).collect(),
            age: (0..blocks).collect(),
            clock: blocks,
            found: HashMap::new(),
            key_of: vec![None; blocks as usize],
            last_name: 0,
            live: BTreeMap::new(),
        })
    }

    fn sequence(&self, seq: i64) -> Result<&Sequence, Failed> {
        self.live.get(&seq).ok_or(("UnknownSequence", format!("no live sequence {seq}")))
    }

    fn new_id(&self, seq: i64) -> Result<(), Failed> {
        match seq < 0 || self.live.contains_key(&seq) {
            true => Err(("BadInput", format!("sequence id {seq}: negative or in use"))),
            false => Ok(()),
        }
    }

    fn need(&self, tokens: usize, blocks: usize) -> Result<(), Failed> {
        if tokens > self.owners.len() * self.size {
            return Err(("Refused", format!("{tokens} tokens never fit")));
        }
        match blocks > self.idle.len() {
            true => Err(("OutOfBlocks", format!("{blocks} blocks needed, {} free", self.idle.len()))),
            false => Ok(()),
        }
    }

    fn key(&self, names: &[u64], tokens: &[i64]) -> Key {
        let at = names.len() * self.size;
        (names.last().copied().unwrap_or(0), tokens[at..at + self.size].to_vec())
    }

    fn take(&mut self) -> usize {
        let (_, block) = self.idle.pop_first().expect("counted before");
        if let Some(key) = self.key_of[block].take() {
            self.found.remove(&key);
        }
        self.owners[block] = 1;
        block
    }

    fn hold(&mut self, block: usize) {
        if self.owners[block] == 0 {
            self.idle.remove(&self.age[block]);
        }
        self.owners[block] += 1;
    }

    fn release(&mut self, block: usize) {
        self.owners[block] -= 1;
        if self.owners[block] == 0 {
            self.clock += 1;
            self.age[block] = if self.key_of[block].is_some() { self.clock } else { -self.clock };
            self.idle.insert(self.age[block], block);
        }
    }

    fn add(&mut self, seq: i64, tokens: Vec<i64>) -> Result<i64, Failed> {
        self.new_id(seq)?;
        let (mut names, mut table) = (vec![], vec![]);
        while tokens.len() > (names.len() + 1) * self.size {
            let Some(&(name, block)) = self.found.get(&self.key(&names, &tokens)) else { break };
            names.push(name);
            table.push(block);
        }
        let (hits, whole) = (table.len(), tokens.len().div_ceil(self.size));
        let revived = table.iter().filter(|b| self.owners[**b] == 0).count();
        self.need(tokens.len(), whole - hits + revived)?;
        table.clone().into_iter().for_each(|b| self.hold(b)); // before others are taken
        table.extend((hits..whole).map(|_| self.take()));
        self.live.insert(seq, Sequence { tokens, table, names });
        Ok((hits * self.size) as i64)
    }

    fn append(&mut self, seq: i64, tokens: Vec<i64>) -> Result<Json, Failed> {
        let s = self.sequence(seq)?;
        let (length, whole) =
            (s.tokens.len() + tokens.len(), (s.tokens.len() + tokens.len()).div_ceil(self.size));
        let tail = *s.table.last().expect("never empty");
        let shared = s.tokens.len() % self.size > 0 && self.owners[tail] > 1;
        let new = whole - s.table.len();
        self.need(length, new + shared as usize)?;
        let mut taken: Vec<usize> = (0..new + shared as usize).map(|_| self.take()).collect();
        let mut copies = vec![];
        let s = self.live.get_mut(&seq).expect("looked up before");
        if shared {
            *s.table.last_mut().expect("never empty") = taken[0]; // copy-on-write
            copies.push(list(&[tail, taken.remove(0)]));
        }
        s.tokens.extend(tokens);
        s.table.extend(taken);
        if shared {
            self.release(tail);
        }
        Ok(List(copies))
    }

    fn commit(&mut self, seq: i64, computed: i64) -> Result<(), Failed> {
        let length = self.sequence(seq)?.tokens.len();
        if computed < 0 || computed as usize > length {
            return Err(("BadInput", format!("computed {computed}: 0 to {length}")));
        }
        while self.cache && self.live[&seq].names.len() < computed as usize / self.size {
            let s = &self.live[&seq];
            let (key, own) = (self.key(&s.names, &s.tokens), s.table[s.names.len()]);
            self.last_name += 1;
            let (name, block) = *self.found.entry(key.clone()).or_insert((self.last_name, own));
            self.key_of[block] = Some(key); // of two equal blocks the first one stays
            self.live.get_mut(&seq).expect("looked up before").names.push(name);
        }
        Ok(())
    }

    fn fork(&mut self, seq: i64, child: i64) -> Result<(), Failed> {
        self.new_id(child)?;
        let s = self.sequence(seq)?;
        let copy = Sequence { tokens: s.tokens.clone(), table: s.table.clone(), names: s.names.clone() };
        copy.table.iter().for_each(|b| self.owners[*b] += 1);
        self.live.insert(child, copy);
        Ok(())
    }

    fn free(&mut self, seq: i64) -> Result<(), Failed> {
        self.sequence(seq)?;
        let s = self.live.remove(&seq).expect("looked up before");
        s.table.iter().rev().for_each(|b| self.release(*b)); // the tail is reused first
        Ok(())
    }

    fn state(&self) -> Json {
        let tables = self.live.iter().map(|(seq, s)| (seq.to_string(), list(&s.table))).collect();
        let owned = self.owners.iter().enumerate().filter(|(_, n)| **n > 0);
        let refs = owned.map(|(b, n)| (b.to_string(), Int(*n))).collect();
        map(vec![("free", Int(self.idle.len() as i64)), ("tables", Map(tables)), ("refs", Map(refs))])
    }

    pub fn call(&mut self, op: &str, message: &Json) -> Result<Json, Failed> {
        let seq = || message.int("seq");
        Ok(match op {
            "add" => Int(self.add(seq()?, message.ints("tokens")?)?),
            "append" => self.append(seq()?, message.ints("tokens")?)?,
            "commit" => self.commit(seq()?, message.int("computed")?).map(|_| Null)?,
            "fork" => self.fork(seq()?, message.int("child")?).map(|_| List(vec![]))?,
            "free" => self.free(seq()?).map(|_| Null)?,
            "table" => list(&self.sequence(seq()?)?.table),
            "free_blocks" => Int(self.idle.len() as i64),
            "refcount" => Int(*self.owners.get(message.int("block")? as usize).unwrap_or(&0)),
            "state" => self.state(),
            _ => return Err(("Unsupported", format!("no request {op}"))),
        })
    }
}
