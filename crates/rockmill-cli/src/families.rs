//! list-cf, create-cf and drop-cf.

use std::sync::Arc;

use rockmill::Options;
use rockmill_format::comparator::{HashRangeComparator, ReverseBytewiseComparator};
use serde_json::{Value, json};

use crate::args::{CreateCfArgs, DropCfArgs, ListCfArgs};
use crate::error::{CliError, Result};
use crate::output::Out;
use crate::store::{self, OpenToWrite};

/// `rockmill list-cf`
pub fn list(args: &ListCfArgs, out: &mut Out) -> Result<()> {
    let families = store::families(&args.db)?;
    if out.json {
        let all: Vec<Value> = families
            .iter()
            .map(|f| json!({ "id": f.id, "name": f.name, "comparator": f.comparator, "levels": f.levels }))
            .collect();
        return out.json_object(&json!({ "column_families": all }));
    }
    families.iter().try_for_each(|f| out.line(&f.name))
}

/// `rockmill create-cf`
pub fn create(args: &CreateCfArgs, out: &mut Out) -> Result<()> {
    if args.name.is_empty() {
        return Err(CliError::usage("a column family needs a name"));
    }
    let mut options = Options::default();
    store::set_tables(&mut options, args.tables)?;
    let store = args.stored.alone();
    let open = OpenToWrite { path: &args.db, args: &store, create: false, family: None, fs: None };
    let (db, _) = open.open()?;
    if args.reverse_order {
        options.set_comparator_object(Arc::new(ReverseBytewiseComparator));
    }
    if args.hash_range {
        options.set_comparator_object(Arc::new(HashRangeComparator));
    }
    let cf = db.create_cf(&args.name, &options)?;
    if out.json {
        return out.json_object(&json!({ "created": cf.name(), "id": cf.id() }));
    }
    out.note(format!("created column family {:?} (id {})", cf.name(), cf.id()))
}

/// `rockmill drop-cf`
pub fn drop(args: &DropCfArgs, out: &mut Out) -> Result<()> {
    let store = args.stored.alone();
    let open = OpenToWrite { path: &args.db, args: &store, create: false, family: Some(&args.name), fs: None };
    let (db, _) = open.open()?;
    db.drop_cf(&args.name)?;
    if out.json {
        return out.json_object(&json!({ "dropped": args.name }));
    }
    out.note(format!("dropped column family {:?}", args.name))
}
