package cmd

import (
	"bytes"
	"html/template"
	"io"

	"github.com/olekukonko/tablewriter/tw"
)

// page is one self-contained HTML file: nothing is fetched when it is opened.
var page = template.Must(template.New("page").Parse(`<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>{{.Title}}</title>
<style>
body { font: 15px/1.45 system-ui, sans-serif; max-width: 70em; margin: 2em auto; padding: 0 1em; color: #1f2328; }
table { border-collapse: collapse; margin: .5em 0; font-variant-numeric: tabular-nums; font-size: 13px; }
th, td { padding: .2em .7em; text-align: left; border-bottom: 1px solid #d8dee4; white-space: nowrap; }
th { vertical-align: bottom; }
.right { text-align: right; }
.good { background: #e6f4ea; }
.bad { background: #fbe9e7; }
h2 { font-size: 1.1em; margin: 1.6em 0 0; }
p { margin: .3em 0; color: #57606a; }
.figures { display: flex; flex-wrap: wrap; }
</style>
</head>
<body>
<h1>{{.Title}}</h1>
{{range .Tables}}{{if .Title}}<h2>{{.Title}}</h2>
{{end}}{{if .Rows}}<table>
<tr>{{range .Headers}}<th{{if .Right}} class="right"{{end}}>{{.Text}}</th>{{end}}</tr>
{{range .Rows}}<tr{{if .Mark}} class="{{.Mark}}"{{end}}>{{range .Cells}}<td{{if .Right}} class="right"{{end}}>{{.Text}}</td>{{end}}</tr>
{{end}}</table>
{{end}}{{range .Notes}}<p>{{.}}</p>
{{end}}{{end}}<div class="figures">
{{range .Figures}}<div>{{.}}</div>
{{end}}</div>
</body>
</html>
`))

type htmlCell struct {
	Text  string
	Right bool
}

type htmlRow struct {
	Mark  string
	Cells []htmlCell
}

type htmlTable struct {
	Title   string
	Headers []htmlCell
	Rows    []htmlRow
	Notes   []string
}

// writeHTML writes the report's tables and plots as one page.
func (r report) writeHTML(w io.Writer) error {
	data := struct {
		Title   string
		Tables  []htmlTable
		Figures []template.HTML
	}{Title: r.title}
	for _, t := range r.tables {
		headers, align, rows := t.visible()
		cells := func(texts []string) []htmlCell {
			all := make([]htmlCell, len(texts))
			for i, s := range texts {
				all[i] = htmlCell{s, align[i] == tw.AlignRight}
			}
			return all
		}
		h := htmlTable{Title: t.title, Headers: cells(joinLines(headers)), Notes: t.notes}
		for i, row := range rows {
			h.Rows = append(h.Rows, htmlRow{t.marks[i], cells(row)})
		}
		data.Tables = append(data.Tables, h)
	}
	for _, p := range r.plots {
		svg, err := p.svg()
		if err != nil {
			return err
		}
		// The XML declaration has no place inside a page.
		if i := bytes.Index(svg, []byte("<svg")); i >= 0 {
			data.Figures = append(data.Figures, template.HTML(svg[i:]))
		}
	}
	return page.Execute(w, data)
}
