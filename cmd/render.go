package cmd

import (
	"encoding/csv"
	"fmt"
	"io"
	"strings"

	"github.com/olekukonko/tablewriter"
	"github.com/olekukonko/tablewriter/pkg/twwidth"
	"github.com/olekukonko/tablewriter/renderer"
	"github.com/olekukonko/tablewriter/tw"
)

// report is a command's result in all its forms.
type report struct {
	title  string // of the HTML page
	tables []*table
	// data is the table that csv and tsv print; nil means the first of tables.
	data *table
	json any
	// plots are for HTML only.
	plots []scatter
}

// table is a titled table. Its cells hold what people read and what programs
// read, so that all formats come from one place.
type table struct {
	title   string // one line above; "" for none
	columns []column
	rows    [][]cell
	marks   []string // per row, "" or the name of a style: "good", "bad"
	notes   []string // lines below
	wide    bool     // may exceed textWidth
	// spare are the headers of columns that give way, in this order, where the
	// table exceeds textWidth.
	spare []string
}

// textWidth is what a table keeps to unless the user asked for more.
const textWidth = 80

// column describes one column. A column without a header is only for csv and
// tsv, one without a name only for people.
type column struct {
	header   string // with its unit, if it has one: "size GiB"; "\n" breaks it in text
	name     string // snake_case, with its unit: "total_bytes"
	right    bool   // numbers are aligned on their right
	optional bool   // people do not see the column when no row has a value
}

// cell is one value: as text for people, and exact for programs. Absent
// values are empty for programs.
type cell struct{ text, value string }

// add appends a row; cells are in the order of the columns.
func (t *table) add(cells ...cell) {
	if len(cells) != len(t.columns) {
		panic(fmt.Sprintf("cmd: %d cells in a table of %d columns", len(cells), len(t.columns)))
	}
	t.rows = append(t.rows, cells)
	t.marks = append(t.marks, "")
}

// mark gives the last row a style.
func (t *table) mark(style string) { t.marks[len(t.marks)-1] = style }

// render writes the report in one format.
func (r report) render(w io.Writer, format string, color bool) error {
	switch format {
	case formatJSON:
		return writeJSON(w, r.json)
	case formatHTML:
		return r.writeHTML(w)
	case formatCSV, formatTSV:
		t := r.data
		if t == nil {
			t = r.tables[0]
		}
		return t.writeSeparated(w, format)
	}
	for i, t := range r.tables {
		if i > 0 {
			fmt.Fprintln(w)
		}
		write := t.writeText
		if format == formatMD {
			write = t.writeMarkdown
		}
		if err := write(w, color); err != nil {
			return err
		}
	}
	return nil
}

// writeSeparated writes the columns that have a name, with exact values.
func (t *table) writeSeparated(w io.Writer, format string) error {
	out := csv.NewWriter(w)
	if format == formatTSV {
		out.Comma = '\t'
	}
	record := make([]string, 0, len(t.columns))
	for _, c := range t.columns {
		if c.name != "" {
			record = append(record, c.name)
		}
	}
	if err := out.Write(record); err != nil {
		return err
	}
	for _, row := range t.rows {
		record = record[:0]
		for i, c := range t.columns {
			if c.name != "" {
				record = append(record, row[i].value)
			}
		}
		if err := out.Write(record); err != nil {
			return err
		}
	}
	out.Flush()
	return out.Error()
}

// visible returns what people see: headers, alignments and cells of the
// columns that have a header.
func (t *table) visible() (headers []string, align []tw.Align, rows [][]string) {
	shown := make([]bool, len(t.columns))
	for i, c := range t.columns {
		shown[i] = c.header != "" && !(c.optional && t.empty(i))
		if !shown[i] {
			continue
		}
		headers = append(headers, c.header)
		a := tw.AlignLeft
		if c.right {
			a = tw.AlignRight
		}
		align = append(align, a)
	}
	for _, row := range t.rows {
		var cells []string
		for i := range t.columns {
			if shown[i] {
				cells = append(cells, row[i].text)
			}
		}
		rows = append(rows, cells)
	}
	return headers, align, rows
}

func (t *table) empty(column int) bool {
	for _, row := range t.rows {
		if row[column] != absent() && row[column].text != "" {
			return false
		}
	}
	return true
}

// liftLong empties those cells of the first column that make the table wider
// than textWidth, and returns them: they go on a line of their own above the
// row, because a name that is cut or wrapped can neither be read nor copied.
func liftLong(headers []string, rows [][]string) (lifted []string) {
	widths := make([]int, len(headers))
	for i, h := range headers {
		for line := range strings.SplitSeq(h, "\n") {
			widths[i] = max(widths[i], twwidth.Width(line))
		}
	}
	for _, row := range rows {
		for i, cell := range row[1:] {
			widths[i+1] = max(widths[i+1], twwidth.Width(cell))
		}
	}
	room := textWidth
	for _, w := range widths[1:] {
		room -= w + 2
	}
	room = max(room, widths[0])
	lifted = make([]string, len(rows))
	for i, row := range rows {
		if twwidth.Width(row[0]) > room {
			lifted[i], row[0] = row[0], ""
		}
	}
	return lifted
}

// narrow hides the spare columns, in their order, until the rest fits beside the
// first column, whose cells may stand on lines of their own.
func (t *table) narrow() {
	var gone []string
	for _, header := range t.spare {
		headers, _, rows := t.visible()
		width := 0
		for i, h := range headers {
			most := twwidth.Width(h)
			for _, row := range rows {
				if i > 0 {
					most = max(most, twwidth.Width(row[i]))
				}
			}
			width += most + 2
		}
		if width-2 <= textWidth {
			break
		}
		for i := range t.columns {
			if c := &t.columns[i]; c.header == header && !t.empty(i) {
				c.header = ""
				gone = append(gone, header)
			}
		}
	}
	if len(gone) > 0 {
		t.notes = append(t.notes, "no room for "+strings.Join(gone, ", ")+": --format csv has them")
	}
}

// plain is a table of columns two spaces apart under a ruled header, without
// a frame, wrapping or reformatting: it stays readable in a pipe and in mail.
func plain(w io.Writer, align []tw.Align) *tablewriter.Table {
	return tablewriter.NewTable(w,
		tablewriter.WithRenderer(renderer.NewBlueprint(tw.Rendition{
			Borders: tw.BorderNone,
			Symbols: tw.NewSymbolCustom("plain").WithRow("-").WithColumn("").WithCenter("").WithMidLeft("").WithMidRight(""),
			Settings: tw.Settings{
				Separators: tw.Separators{BetweenColumns: tw.Off, BetweenRows: tw.Off},
				Lines:      tw.Lines{ShowHeaderLine: tw.Off},
			},
		})),
		tablewriter.WithHeaderAutoFormat(tw.Off),
		tablewriter.WithHeaderAutoWrap(tw.WrapNone),
		tablewriter.WithRowAutoWrap(tw.WrapNone),
		tablewriter.WithTrimSpace(tw.Off),
		tablewriter.WithPadding(tw.Padding{Right: "  ", Overwrite: true}),
		tablewriter.WithHeaderAlignmentConfig(tw.CellAlignment{PerColumn: align}),
		tablewriter.WithRowAlignmentConfig(tw.CellAlignment{PerColumn: align}),
	)
}

// writeText writes the table for a terminal.
func (t *table) writeText(w io.Writer, color bool) error {
	if !t.wide {
		t.narrow()
	}
	headers, align, rows := t.visible()
	if t.title != "" {
		for _, line := range wrap(t.title, textWidth) {
			fmt.Fprintln(w, styled(color, "title", line))
		}
	}
	if len(rows) > 0 {
		lifted := make([]string, len(rows))
		if !t.wide {
			lifted = liftLong(headers, rows)
		}
		headerLines := 1
		for _, h := range headers {
			headerLines = max(headerLines, 1+strings.Count(h, "\n"))
		}
		var b strings.Builder
		out := plain(&b, align)
		out.Header(headers)
		if err := out.Bulk(rows); err != nil {
			return err
		}
		if err := out.Render(); err != nil {
			return err
		}
		for i, line := range strings.Split(strings.TrimRight(b.String(), "\n"), "\n") {
			// tablewriter pads the last column; nobody wants that pasted.
			line = strings.TrimRight(line, " ")
			row := i - headerLines
			if row < 0 {
				fmt.Fprintln(w, styled(color, "header", line))
				continue
			}
			if lifted[row] != "" {
				fmt.Fprintln(w, styled(color, t.marks[row], lifted[row]))
			}
			fmt.Fprintln(w, styled(color, t.marks[row], line))
		}
	}
	for _, n := range t.notes {
		for _, line := range wrap(n, textWidth) {
			fmt.Fprintln(w, line)
		}
	}
	return nil
}

// wrap breaks text between words into lines of at most width bytes where it
// can. Further lines are indented two more than the first.
func wrap(text string, width int) []string {
	indent := strings.Repeat(" ", len(text)-len(strings.TrimLeft(text, " ")))
	var lines []string
	start := indent
	current := start
	for _, word := range strings.Fields(text) {
		switch {
		case current == start:
			current += word
		case len(current)+1+len(word) <= width:
			current += " " + word
		default:
			lines = append(lines, current)
			start = indent + "  "
			current = start + word
		}
	}
	return append(lines, current)
}

// joinLines undoes the line breaks of headers, which are for text only. A
// break stands for a space unless it is inside a name.
func joinLines(headers []string) []string {
	unbreak := strings.NewReplacer("\n_", "_", "\n/", "/", "-\n", "", "\n", " ")
	joined := make([]string, len(headers))
	for i, h := range headers {
		joined[i] = unbreak.Replace(h)
	}
	return joined
}

// writeMarkdown writes a GitHub table; title and notes become paragraphs.
func (t *table) writeMarkdown(w io.Writer, _ bool) error {
	headers, align, rows := t.visible()
	if t.title != "" {
		fmt.Fprintf(w, "**%s**\n\n", t.title)
	}
	if len(rows) > 0 {
		escape := strings.NewReplacer("|", `\|`)
		headers = joinLines(headers)
		for _, row := range append([][]string{headers}, rows...) {
			for i := range row {
				row[i] = escape.Replace(row[i])
			}
		}
		out := tablewriter.NewTable(w,
			tablewriter.WithRenderer(renderer.NewMarkdown()),
			tablewriter.WithHeaderAutoFormat(tw.Off),
			tablewriter.WithHeaderAutoWrap(tw.WrapNone),
			tablewriter.WithRowAutoWrap(tw.WrapNone),
			tablewriter.WithHeaderAlignmentConfig(tw.CellAlignment{PerColumn: align}),
			tablewriter.WithRowAlignmentConfig(tw.CellAlignment{PerColumn: align}),
		)
		out.Header(headers)
		if err := out.Bulk(rows); err != nil {
			return err
		}
		if err := out.Render(); err != nil {
			return err
		}
	}
	for i, n := range t.notes {
		if i > 0 || len(rows) > 0 {
			fmt.Fprintln(w)
		}
		if strings.HasPrefix(n, "*") {
			n = `\` + n // else it would start a list and vanish
		}
		fmt.Fprintln(w, n)
	}
	return nil
}

// styled colours a whole line, so that no column's width is touched.
func styled(color bool, style, line string) string {
	if !color || line == "" {
		return line
	}
	code := map[string]string{"title": "1", "header": "2", "good": "32", "bad": "31"}[style]
	if code == "" {
		return line
	}
	return "\x1b[" + code + "m" + line + "\x1b[0m"
}
