//! Tables of results as text.

use comfy_table::{CellAlignment, Table, presets};

/// A table whose first `words` columns are words and say what a row is about; the others are figures. A terminal that
/// is too narrow for all columns gets several tables below each other, each with the first columns.
pub(crate) fn text(heads: &[&str], words: usize, rows: &[Vec<String>]) -> String {
    let any = Table::new();
    let columns = any.width().filter(|_| any.is_tty()).map_or(usize::MAX, usize::from);
    within(columns, heads, words, rows)
}

fn within(columns: usize, heads: &[&str], words: usize, rows: &[Vec<String>]) -> String {
    // A column has a border and two blanks.
    let wide = |i: usize| {
        let cells = rows.iter().filter_map(|row| row.get(i)).map(|cell| cell.chars().count());
        cells.chain([heads[i].chars().count()]).max().unwrap_or(0) + 3
    };
    let first = 1 + (0..words).map(wide).sum::<usize>();
    let (mut parts, mut part, mut taken) = (Vec::new(), Vec::new(), first);
    for i in words..heads.len() {
        if taken + wide(i) > columns && !part.is_empty() {
            parts.push(std::mem::take(&mut part));
            taken = first;
        }
        part.push(i);
        taken += wide(i);
    }
    parts.push(part);
    let table = |part: &Vec<usize>| {
        let of =
            |cells: &dyn Fn(usize) -> String| (0..words).chain(part.iter().copied()).map(cells).collect::<Vec<_>>();
        let mut table = Table::new();
        table.load_preset(presets::ASCII_MARKDOWN).set_header(of(&|i| heads[i].to_owned()));
        for row in rows {
            table.add_row(of(&|i| row.get(i).cloned().unwrap_or_default()));
        }
        for column in table.column_iter_mut().skip(words) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        table.to_string()
    };
    parts.iter().map(table).collect::<Vec<_>>().join("\n\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_narrow_terminal_gets_several_tables() {
        let heads = ["benchmark", "store", "ops/s", "p50 us", "p99 us"];
        let row = |cells: [&str; 5]| cells.map(str::to_owned).to_vec();
        let rows =
            [row(["fillrandom", "rockmill", "419k", "1.9", "4.6"]), row(["compact", "rocksdb", "2.8", "-", "-"])];
        let all = within(usize::MAX, &heads, 2, &rows);
        assert!(all.starts_with("| benchmark  | store    | ops/s | p50 us | p99 us |\n"), "{all}");
        assert!(all.contains("| compact    | rocksdb  |   2.8 |      - |      - |"), "{all}");
        assert_eq!(within(51, &heads, 2, &rows), all, "it is as wide as that");
        let narrow = within(50, &heads, 2, &rows);
        assert!(narrow.lines().all(|line| line.chars().count() <= 50), "{narrow}");
        assert!(narrow.contains("\n\n| benchmark  | store    | p99 us |\n"), "{narrow}");
        // A column has its place even where it has no room.
        assert_eq!(within(1, &heads, 2, &rows).matches("| benchmark").count(), 3);
    }
}
