// JSON, as much of it as the protocol needs.

pub type Failed = (&'static str, String);

#[derive(Clone, PartialEq)]
pub enum Json {
    Null,
    Bool(bool),
    Int(i64),
    Float, // the protocol has none: it is read to be refused
    Text(String),
    List(Vec<Json>),
    Map(Vec<(String, Json)>),
}
use Json::*;

pub struct Reader<'a>(pub &'a [u8], pub usize);

impl Reader<'_> {
    fn next(&mut self) -> Option<u8> {
        while self.0.get(self.1)?.is_ascii_whitespace() {
            self.1 += 1;
        }
        self.1 += 1;
        Some(self.0[self.1 - 1])
    }
    fn word(&mut self, rest: &str, value: Json) -> Option<Json> {
        self.1 += rest.len();
        (self.0.get(self.1 - rest.len()..self.1)? == rest.as_bytes()).then_some(value)
    }
    fn text(&mut self) -> Option<String> {
        let mut out = Vec::new();
        loop {
            self.1 += 1;
            match self.0.get(self.1 - 1)? {
                b'"' => return String::from_utf8(out).ok(),
                b'\\' => {
                    out.extend([b'\\', *self.0.get(self.1)?]); // escapes are kept as they are
                    self.1 += 1;
                }
                c => out.push(*c),
            }
        }
    }
    fn number(&mut self) -> Option<Json> {
        let start = self.1 - 1;
        while matches!(self.0.get(self.1), Some(b'0'..=b'9' | b'.' | b'e' | b'E' | b'+' | b'-')) {
            self.1 += 1;
        }
        let digits = std::str::from_utf8(&self.0[start..self.1]).ok()?;
        digits.parse().map(Int).or(digits.parse::<f64>().map(|_| Float)).ok()
    }
    pub fn value(&mut self) -> Option<Json> {
        match self.next()? {
            b'n' => self.word("ull", Null),
            b't' => self.word("rue", Bool(true)),
            b'f' => self.word("alse", Bool(false)),
            b'"' => self.text().map(Text),
            b'[' => {
                let mut items = vec![];
                if self.next()? == b']' {
                    return Some(List(items));
                }
                self.1 -= 1;
                loop {
                    items.push(self.value()?);
                    match self.next()? {
                        b',' => (),
                        b']' => return Some(List(items)),
                        _ => return None,
                    }
                }
            }
            b'{' => {
                let mut fields = vec![];
                let mut mark = self.next()?;
                while mark != b'}' {
                    let name = if mark == b'"' { self.text()? } else { return None };
                    if self.next()? != b':' {
                        return None;
                    }
                    fields.push((name, self.value()?));
                    mark = self.next()?;
                    if mark == b',' {
                        mark = self.next()?;
                    }
                }
                Some(Map(fields))
            }
            b'-' | b'0'..=b'9' => self.number(),
            _ => None,
        }
    }
}

pub fn write(value: &Json, out: &mut String) {
    let list =
        |out: &mut String, open: char, close: char, n: usize, item: &mut dyn FnMut(usize, &mut String)| {
            out.push(open);
            for i in 0..n {
                if i > 0 {
                    out.push(',');
                }
                item(i, out);
            }
            out.push(close);
        };
    match value {
        Null | Float => out.push_str("null"),
        Bool(b) => out.push_str(if *b { "true" } else { "false" }),
        Int(i) => out.push_str(&i.to_string()),
        Text(t) => out.push_str(&format!("\"{t}\"")),
        List(items) => list(out, '[', ']', items.len(), &mut |i, out| write(&items[i], out)),
        Map(fields) => list(out, '{', '}', fields.len(), &mut |i, out| {
            out.push_str(&format!("\"{}\":", fields[i].0));
            write(&fields[i].1, out)
        }),
    }
}

impl Json {
    pub fn get(&self, name: &str) -> &Json {
        match self {
            Map(fields) => fields.iter().find(|f| f.0 == name).map_or(&Null, |f| &f.1),
            _ => &Null,
        }
    }
    pub fn int(&self, name: &str) -> Result<i64, Failed> {
        match self.get(name) {
            Int(i) => Ok(*i),
            _ => Err(("BadInput", format!("{name}: an integer is needed"))),
        }
    }
    pub fn ints(&self, name: &str) -> Result<Vec<i64>, Failed> {
        let bad = || ("BadInput", format!("{name}: a list of at least one integer is needed"));
        match self.get(name) {
            List(items) if !items.is_empty() => {
                items.iter().map(|x| if let Int(i) = x { Ok(*i) } else { Err(bad()) }).collect()
            }
            _ => Err(bad()),
        }
    }
}

pub fn map(fields: Vec<(&str, Json)>) -> Json {
    Map(fields.into_iter().map(|(name, value)| (name.to_string(), value)).collect())
}

pub fn list(blocks: &[usize]) -> Json {
    List(blocks.iter().map(|b| Int(*b as i64)).collect())
}
