//! Reads records from files: one parser per format, all behind [`Source`].
//!
//! Every parser reads line by line (a quoted CSV row may span several lines) and keeps one line in memory. For an
//! invalid line it reports the reason; the caller decides whether to stop the load.

mod columns;
mod csv_rows;
mod jsonl;
mod lines;
mod reader;

use std::cell::Cell;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::rc::Rc;

use crate::args::{FormatArg, InputArgs};
use crate::error::{CliError, Result};
use crate::output;

use columns::{ColumnChoice, TsvParser};
use csv_rows::CsvParser;
use jsonl::JsonlParser;
use lines::{LineKey, LinesParser};
use reader::{LineReader, Metered};

/// What reading one record came to.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// Key and value are in the buffers.
    Record,
    /// The line cannot be used, for this reason.
    Bad(String),
    /// The file ended.
    End,
}

/// A key and its value, in reused buffers.
#[derive(Debug, Default)]
pub struct Record {
    /// The key.
    pub key: Vec<u8>,
    /// The value.
    pub value: Vec<u8>,
}

impl Record {
    fn clear(&mut self) {
        self.key.clear();
        self.value.clear();
    }
}

/// The checked command line settings of the input.
#[derive(Debug, Clone)]
pub struct Settings {
    header: bool,
    columns: ColumnChoice,
    json_key: Option<String>,
    json_value: Option<String>,
    line_key: LineKey,
    hex: bool,
}

impl Settings {
    /// Checks that flags are used only with their formats.
    pub fn new(args: &InputArgs, formats: &[FormatArg]) -> Result<Self> {
        let has = |f| formats.contains(&f);
        let columnar = has(FormatArg::Tsv) || has(FormatArg::Csv) || (args.hex && has(FormatArg::Lines));
        let unused = |flag: &str, of: &str| Err(CliError::usage(format!("{flag} is for {of} files; there is none")));
        if !columnar {
            if args.header {
                return unused("--header", "tsv and csv");
            }
            if args.key_column.is_some() || args.value_column.is_some() || args.whole_row {
                return unused("--key-column, --value-column or --whole-row", "tsv and csv");
            }
        }
        if args.value.is_some() && !has(FormatArg::Jsonl) {
            return unused("--value", "jsonl");
        }
        if args.key.is_some() && !has(FormatArg::Jsonl) && !has(FormatArg::Lines) {
            return unused("--key", "jsonl and lines").map_err(|e: CliError| e.hint("tsv and csv have --key-column"));
        }
        if has(FormatArg::Jsonl) && args.key.is_none() {
            return Err(CliError::usage("jsonl needs --key FIELD: which field is the key?")
                .hint("dots go into objects: --key user.id"));
        }
        let line_key = match args.key.as_deref() {
            Some("line") => LineKey::Line,
            None | Some("number") => LineKey::Number,
            Some(_) if !has(FormatArg::Lines) => LineKey::Number,
            Some(other) => return Err(CliError::usage(format!("--key {other:?}: for lines it is `line` or `number`"))),
        };
        Ok(Self {
            header: args.header,
            columns: ColumnChoice::new(
                args.key_column.as_deref(),
                args.value_column.as_deref(),
                args.whole_row,
                args.header,
            )?,
            json_key: args.key.clone(),
            json_value: args.value.clone(),
            line_key,
            hex: args.hex,
        })
    }
}

/// The format of a file, from the command line or from its name.
pub fn format_of(path: &Path, given: Option<FormatArg>) -> Result<FormatArg> {
    if let Some(format) = given {
        return Ok(format);
    }
    if path.as_os_str() == "-" {
        return Err(CliError::usage("standard input has no name to tell its format").hint("give --format, e.g. tsv"));
    }
    let extension = path.extension().map(|e| e.to_string_lossy().to_ascii_lowercase());
    match extension.as_deref() {
        Some("tsv" | "tab") => Ok(FormatArg::Tsv),
        Some("csv") => Ok(FormatArg::Csv),
        Some("jsonl" | "ndjson") => Ok(FormatArg::Jsonl),
        Some("txt" | "log" | "lines") => Ok(FormatArg::Lines),
        Some("gz" | "zst" | "bz2" | "xz") => Err(CliError::usage(format!("{}: is compressed", path.display()))
            .hint("decompress it into a pipe: zcat FILE | rockmill load DB - --format tsv")),
        _ => Err(CliError::usage(format!("{}: its name does not tell its format", path.display()))
            .hint("give --format tsv, csv, jsonl or lines")),
    }
}

enum Parser {
    Tsv(TsvParser),
    Csv(Box<CsvParser>),
    Jsonl(JsonlParser),
    Lines(LinesParser),
}

/// One input file being read.
pub struct Source {
    parser: Parser,
    name: String,
    hex: bool,
    bytes: Rc<Cell<u64>>,
}

impl Source {
    /// Opens `path`; `-` is standard input. `lines_before`: number of lines in earlier files.
    pub fn open(path: &Path, format: FormatArg, settings: &Settings, lines_before: u64) -> Result<Self> {
        let (name, input): (String, Box<dyn Read>) = if path.as_os_str() == "-" {
            ("standard input".to_owned(), Box::new(io::stdin().lock()))
        } else {
            let name = path.display().to_string();
            let file = File::open(path).map_err(|e| CliError::io(format_args!("cannot open {name}"), &e))?;
            (name, Box::new(file))
        };
        Self::from_reader(input, name, format, settings, lines_before)
    }

    /// Reads records from `input`.
    fn from_reader(
        input: Box<dyn Read>,
        name: String,
        format: FormatArg,
        settings: &Settings,
        lines_before: u64,
    ) -> Result<Self> {
        let bytes = Rc::new(Cell::new(0));
        let input = Metered::new(input, Rc::clone(&bytes));
        // Hexadecimal lines are what `scan --hex` prints: key, tab, value.
        let parser = match format {
            FormatArg::Lines if !settings.hex => {
                Parser::Lines(LinesParser::new(LineReader::new(input), settings.line_key, lines_before))
            }
            FormatArg::Tsv | FormatArg::Lines => {
                Parser::Tsv(TsvParser::new(LineReader::new(input), settings.columns.clone(), settings.header))
            }
            FormatArg::Csv => Parser::Csv(Box::new(CsvParser::new(input, settings.columns.clone(), settings.header))),
            FormatArg::Jsonl => Parser::Jsonl(JsonlParser::new(
                LineReader::new(input),
                settings.json_key.clone().unwrap_or_default(),
                settings.json_value.clone(),
            )),
        };
        Ok(Self { parser, name, hex: settings.hex, bytes })
    }

    /// The next record.
    pub fn next(&mut self, record: &mut Record) -> Result<Step> {
        record.clear();
        let step = match &mut self.parser {
            Parser::Tsv(p) => p.next(record),
            Parser::Csv(p) => p.next(record),
            Parser::Jsonl(p) => p.next(record),
            Parser::Lines(p) => p.next(record),
        };
        let step = step.map_err(|e| CliError::io(format_args!("{}:{}", self.name, self.line()), &e))?;
        if self.hex && step == Step::Record {
            return Ok(unhex(record));
        }
        Ok(step)
    }

    /// The file, for messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The line on which the last record began, from 1.
    pub fn line(&self) -> u64 {
        match &self.parser {
            Parser::Tsv(p) => p.line(),
            Parser::Csv(p) => p.line(),
            Parser::Jsonl(p) => p.line(),
            Parser::Lines(p) => p.line(),
        }
    }

    /// Bytes taken from the file so far.
    pub fn bytes(&self) -> u64 {
        self.bytes.get()
    }
}

fn unhex(record: &mut Record) -> Step {
    let Some(key) = output::unhex(&record.key) else {
        return Step::Bad(format!("the key {:?} is not hexadecimal", output::escape(&record.key, 40)));
    };
    let Some(value) = output::unhex(&record.value) else {
        return Step::Bad(format!("the value {:?} is not hexadecimal", output::escape(&record.value, 40)));
    };
    *record = Record { key, value };
    Step::Record
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use clap::Parser as _;

    /// All steps of loading `text` with these flags, as (line, step); a record's step is its key and value as text.
    fn read(flags: &[&str], text: &str) -> Vec<(u64, String)> {
        let line = ["rockmill", "load", "db", "-"].iter().chain(flags);
        let cli = crate::args::Cli::try_parse_from(line).expect("flags parse");
        let crate::args::Command::Load(args) = cli.command else { panic!("not a load") };
        let format = args.input.format.expect("a format");
        let settings = Settings::new(&args.input, &[format]).expect("settings fit");
        let input = Box::new(io::Cursor::new(text.as_bytes().to_vec()));
        let mut source = Source::from_reader(input, "test".into(), format, &settings, 0).expect("opens");
        let mut record = Record::default();
        let mut all = Vec::new();
        loop {
            match source.next(&mut record).expect("reads") {
                Step::Record => {
                    let shown = format!("{}={}", record.key.escape_ascii(), record.value.escape_ascii());
                    all.push((source.line(), shown));
                }
                Step::Bad(why) => all.push((source.line(), format!("bad: {why}"))),
                Step::End => break,
            }
        }
        assert_eq!(source.bytes(), text.len() as u64);
        all
    }

    fn records(flags: &[&str], text: &str) -> Vec<String> {
        read(flags, text).into_iter().map(|r| r.1).collect()
    }

    #[test]
    fn tsv_takes_the_first_column_as_key_and_the_rest_as_value() {
        let text = "a\t1\nb\t2\t3\n\nc\t\nlast\tx";
        let got = read(&["--format", "tsv"], text);
        let want = [(1, "a=1"), (2, "b=2\\t3"), (4, "c="), (5, "last=x")];
        assert_eq!(got, want.map(|(l, r)| (l, r.to_owned())));
    }

    #[test]
    fn columns_are_chosen_by_number_or_name() {
        let text = "id\tname\tcity\n1\tAda\tLondon\n2\tAlan\tManchester\n";
        let f = ["--format", "tsv", "--header"];
        let with = |more: &[&'static str]| records(&[&f[..], more].concat(), text);
        assert_eq!(with(&["--key-column", "name"]), ["Ada=1\\tLondon", "Alan=2\\tManchester"]);
        assert_eq!(with(&["--key-column", "2", "--value-column", "city"]), ["Ada=London", "Alan=Manchester"]);
        assert_eq!(with(&["--whole-row"]), ["1=1\\tAda\\tLondon", "2=2\\tAlan\\tManchester"]);
        assert_eq!(
            with(&["--key-column", "town"]),
            ["bad: the header has no column \"town\"; it has: id, name, city"; 1]
        );
    }

    #[test]
    fn rows_without_the_column_are_bad() {
        let got = records(&["--format", "tsv"], "only\na\tb\n");
        assert!(got[0].starts_with("bad: ") && got[0].contains("no tab"), "{got:?}");
        assert_eq!(got[1], "a=b");
        let got = records(&["--format", "csv", "--key-column", "3"], "a,b\na,b,c\n");
        assert!(got[0].contains("has 2 columns"), "{got:?}");
        assert_eq!(got[1], "c=a,b");
    }

    #[test]
    fn csv_has_quotes_over_several_lines() {
        let text = "k1,\"a \"\"quoted\"\" value\"\nk2,\"two\nlines\",third\n\"k,3\",x\n";
        let got = read(&["--format", "csv"], text);
        let want = [(1, "k1=a \\\"quoted\\\" value"), (2, "k2=\\\"two\\nlines\\\",third"), (4, "k,3=x")];
        assert_eq!(got, want.map(|(l, r)| (l, r.to_owned())));
    }

    #[test]
    fn jsonl_goes_into_objects() {
        let text =
            "{\"user\":{\"id\":7},\"n\":\"x\"}\n{\"user\":{}}\nnot json\n{\"user\":{\"id\":\"\\u00e4\"},\"n\":[1]}\n";
        let got = read(&["--format", "jsonl", "--key", "user.id", "--value", "n"], text);
        assert_eq!(got[0], (1, "7=x".to_owned()));
        assert!(got[1].1.contains("no field user.id"), "{got:?}");
        assert!(got[2].1.contains("not JSON"), "{got:?}");
        assert_eq!(got[3], (4, "\\xc3\\xa4=[1]".to_owned()));
        let whole = records(&["--format", "jsonl", "--key", "a"], " {\"a\":true}\r\n");
        assert_eq!(whole, ["true={\\\"a\\\":true}"]);
    }

    #[test]
    fn lines_have_numbers() {
        let text = "one\n\ntwo";
        assert_eq!(records(&["--format", "lines"], text), ["000000000001=one", "000000000002=", "000000000003=two"]);
        assert_eq!(records(&["--format", "lines", "--key", "line"], text), ["one=1", "two=3"]);
    }

    #[test]
    fn hexadecimal_is_decoded_or_refused() {
        let got = records(&["--format", "tsv", "--hex"], "00FF\t6162\n0x61\t\nzz\t00\n61\t123\n");
        assert_eq!(got[0], "\\x00\\xff=ab");
        assert_eq!(got[1], "a=");
        assert!(got[2].contains("key \"zz\" is not hexadecimal"), "{got:?}");
        assert!(got[3].contains("value \"123\" is not hexadecimal"), "{got:?}");
    }

    #[test]
    fn flags_of_another_format_are_refused() {
        for flags in [
            &["--format", "lines", "--header"][..],
            &["--format", "lines", "--key-column", "2"],
            &["--format", "tsv", "--key", "x"],
            &["--format", "tsv", "--value", "x"],
            &["--format", "jsonl"],
            &["--format", "lines", "--key", "x"],
            &["--format", "tsv", "--key-column", "name"],
            &["--format", "tsv", "--key-column", "0"],
        ] {
            let line = ["rockmill", "load", "db", "-"].iter().chain(flags);
            let cli = crate::args::Cli::try_parse_from(line).expect("flags parse");
            let crate::args::Command::Load(args) = cli.command else { panic!("not a load") };
            let input = args.input;
            assert!(Settings::new(&input, &[input.format.expect("a format")]).is_err(), "{flags:?}");
        }
    }
}
