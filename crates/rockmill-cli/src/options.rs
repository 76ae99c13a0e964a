//! `rockmill options`: the options that a database has stored.

use rockmill::OptionValue;
use serde_json::{Value, json};

use crate::args::OptionsArgs;
use crate::error::{CliError, Result};
use crate::output::Out;
use crate::store;

/// `rockmill options`
pub fn run(args: &OptionsArgs, family: Option<&str>, out: &mut Out) -> Result<()> {
    let families = store::families(&args.db)?;
    if let Some(name) = family
        && !families.iter().any(|f| f.name == name)
    {
        return Err(CliError::usage(format!("column family {name:?} does not exist")));
    }
    let stored = store::stored_options(&args.db, &args.stored)?;
    let mut shown: Vec<(Option<String>, OptionValue)> = Vec::new();
    for (i, f) in families.iter().filter(|f| family.is_none_or(|name| f.name == name)).enumerate() {
        for option in store::with_named(&stored.family(&f.name), &args.stored)?.values() {
            let of_db = option.section == "DBOptions";
            // Options of the database are the same in every column family.
            if (of_db && i > 0) || (args.changed && option.value == option.default) {
                continue;
            }
            shown.push(((!of_db).then(|| f.name.clone()), option));
        }
    }
    if out.json {
        let options: Vec<Value> = shown.iter().map(|(cf, o)| option_json(cf.as_deref(), o)).collect();
        let warnings: Vec<String> = stored.warnings.iter().map(ToString::to_string).collect();
        return out.json_object(&json!({
            "file": stored.file.as_ref().map(|f| f.display().to_string()),
            "options": options,
            "warnings": warnings,
        }));
    }
    match &stored.file {
        Some(file) => out.note(format!("options of {}", file.display()))?,
        None => out.note("no options are stored: these are the defaults")?,
    }
    let mut section = String::new();
    for (cf, option) in &shown {
        let head = match cf {
            Some(cf) => format!("[{} {cf:?}]", option.section),
            None => format!("[{}]", option.section),
        };
        if head != section {
            out.line(&head)?;
            section = head;
        }
        let mark = if option.value == option.default { ' ' } else { '*' };
        out.line(format!("{mark} {}={}", option.name, option.value))?;
    }
    for warning in &stored.warnings {
        out.note(format!("not used: {warning}"))?;
    }
    Ok(())
}

fn option_json(family: Option<&str>, option: &OptionValue) -> Value {
    json!({
        "section": option.section,
        "column_family": family,
        "name": option.name,
        "value": option.value,
        "default": option.default,
        "changed": option.value != option.default,
        "mutable": option.mutable,
        "document": option.document,
    })
}
