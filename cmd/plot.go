package cmd

import (
	"bytes"
	"cmp"
	"image/color"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	plottext "gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
	"gonum.org/v1/plot/vg/vgsvg"
)

// scatter is a plot of labelled points over a logarithmic y axis.
type scatter struct {
	title, x, y string
	points      []point
}

// point is one labelled point; the marked ones are joined by a line in order
// of x.
type point struct {
	x, y   float64
	label  string
	marked bool
}

// svg draws the plot; nil without points.
func (s scatter) svg() ([]byte, error) {
	p, err := s.plot()
	if p == nil || err != nil {
		return nil, err
	}
	c := vgsvg.New(vg.Points(560), vg.Points(380))
	p.Draw(draw.New(c))
	var b bytes.Buffer
	if _, err := c.WriteTo(&b); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// lowest is a y from which on a point has a place on the logarithmic axis.
const lowest = 1e-300

// plot arranges the points. Those whose y is not positive have no place on the
// axis and are left out; without any other there is no plot.
func (s scatter) plot() (*plot.Plot, error) {
	p := plot.New()
	p.Title.Text = s.title
	p.X.Label.Text = s.x
	p.Y.Label.Text = s.y
	p.Y.Scale = plot.LogScale{}
	p.Y.Tick.Marker = plot.LogTicks{Prec: -1}
	p.Add(plotter.NewGrid())

	var all, marked plotter.XYs
	var names []string
	for _, q := range s.points {
		if q.y < lowest {
			continue
		}
		xy := plotter.XY{X: q.x, Y: q.y}
		all = append(all, xy)
		names = append(names, q.label)
		if q.marked {
			marked = append(marked, xy)
		}
	}
	if len(all) == 0 {
		return nil, nil
	}
	dots, err := plotter.NewScatter(all)
	if err != nil {
		return nil, err
	}
	dots.GlyphStyle = draw.GlyphStyle{Color: color.Gray{0x60}, Radius: vg.Points(2.5), Shape: draw.CircleGlyph{}}
	labels, err := plotter.NewLabels(plotter.XYLabels{XYs: all, Labels: names})
	if err != nil {
		return nil, err
	}
	labels.Offset = vg.Point{X: vg.Points(4), Y: vg.Points(2)}
	for i := range labels.TextStyle {
		labels.TextStyle[i].Font.Size = vg.Points(7)
	}
	p.Add(dots, labels)
	if len(marked) > 0 {
		slices.SortFunc(marked, func(a, b plotter.XY) int { return cmp.Compare(a.X, b.X) })
		front, points, err := plotter.NewLinePoints(marked)
		if err != nil {
			return nil, err
		}
		green := color.RGBA{0x1a, 0x7f, 0x37, 0xff}
		front.Color, points.Color, points.Shape = green, green, draw.CircleGlyph{}
		p.Add(front, points)
	}
	// gonum widens an axis of one value by 1 both ways, which a logarithm does not survive.
	if p.Y.Min == p.Y.Max {
		p.Y.Min, p.Y.Max = p.Y.Min/2, p.Y.Max*2
	}
	// Room on the right, where the labels of the widest schemes stand.
	p.X.Max += (p.X.Max - p.X.Min) * 0.25
	if p.X.Max == p.X.Min {
		p.X.Max++
	}
	return p, nil
}

// chart is curves over two logarithmic axes, with a budget that some of them
// cross. The legend stands beside the plot, in the order of the curves' ends.
type chart struct {
	title, x, y string
	curves      []curve
	budget      float64 // 0 for none
	budgetLabel string
	units       units // of the y axis
}

// curve is one line of a chart, its points in order of x.
type curve struct {
	name   string
	points []xy
	// cross is the last x below the budget, 0 where the curve does not cross.
	cross      float64
	crossLabel string
}

type xy struct{ x, y float64 }

// The sizes of a chart.
const (
	chartWidth, chartHeight = 10 * vg.Inch, 5.6 * vg.Inch
	chartDPI                = 144 // of a PNG
)

// chartColors can be told apart by most people with a colour deficiency (Okabe
// and Ito's set, without yellow); where they run out a dash tells more.
var (
	chartColors = []color.RGBA{
		{0x00, 0x00, 0x00, 0xff}, {0x00, 0x72, 0xb2, 0xff}, {0xd5, 0x5e, 0x00, 0xff}, {0x00, 0x9e, 0x73, 0xff},
		{0xcc, 0x79, 0xa7, 0xff}, {0x56, 0xb4, 0xe9, 0xff}, {0xe6, 0x9f, 0x00, 0xff},
	}
	chartDashes = [][]vg.Length{nil, {6, 3}, {2, 2}, {8, 3, 2, 3}}
	budgetColor = color.RGBA{0xc0, 0x10, 0x20, 0xff}
)

// write draws the chart as ".svg" or ".png".
func (c chart) write(w io.Writer, format string) error {
	if format == ".png" {
		canvas := vgimg.NewWith(vgimg.UseWH(chartWidth, chartHeight), vgimg.UseDPI(chartDPI))
		c.draw(draw.New(canvas))
		_, err := vgimg.PngCanvas{Canvas: canvas}.WriteTo(w)
		return err
	}
	canvas := vgsvg.New(chartWidth, chartHeight)
	c.draw(draw.New(canvas))
	var b bytes.Buffer
	if _, err := canvas.WriteTo(&b); err != nil {
		return err
	}
	// Where that font is missing, others of the same widths stand in.
	_, err := w.Write(bytes.ReplaceAll(b.Bytes(), []byte("font-family:Liberation Sans;"), []byte("font-family:Liberation Sans,Arial,Helvetica,sans-serif;")))
	return err
}

// styles are the lines of the curves: a colour each, and a dash that tells a
// curve from an earlier one of the same colour or in the same place. No two are
// alike while there are no more curves than colours times dashes.
func (c chart) styles() []draw.LineStyle {
	dashes := make([]int, len(c.curves))
	out := make([]draw.LineStyle, len(c.curves))
	for i := range c.curves {
		for j := range i {
			if ratio := c.end(i).y / c.end(j).y; ratio > 0.97 && ratio < 1.03 {
				dashes[i]++
			}
		}
		dashes[i] %= len(chartDashes)
		taken := map[int]bool{}
		for j := i % len(chartColors); j < i; j += len(chartColors) {
			taken[dashes[j]] = true
		}
		for taken[dashes[i]] && len(taken) < len(chartDashes) {
			dashes[i] = (dashes[i] + 1) % len(chartDashes)
		}
		out[i] = draw.LineStyle{Color: chartColors[i%len(chartColors)], Width: vg.Points(1.6), Dashes: chartDashes[dashes[i]]}
	}
	return out
}

// end is the last point of a curve.
func (c chart) end(i int) xy {
	points := c.curves[i].points
	return points[len(points)-1]
}

// sans is a style of text in so many points.
func sans(style plottext.Style, points float64) plottext.Style {
	style.Font.Variant = "Sans"
	style.Font.Size = vg.Points(points)
	return style
}

func (c chart) draw(canvas draw.Canvas) {
	p := plot.New()
	p.Title.Text = c.title
	p.Title.TextStyle = sans(p.Title.TextStyle, 13)
	p.Title.Padding = vg.Points(8)
	for _, axis := range []*plot.Axis{&p.X, &p.Y} {
		axis.Tick.Label = sans(axis.Tick.Label, 10)
		axis.Scale = plot.LogScale{}
		axis.Padding = 0
	}
	low, high := c.curves[0].points[0], c.curves[0].points[0]
	for _, line := range c.curves {
		for _, q := range line.points {
			low.x, low.y = min(low.x, q.x), min(low.y, q.y)
			high.x, high.y = max(high.x, q.x), max(high.y, q.y)
		}
	}
	if c.budget > 0 {
		low.y, high.y = min(low.y, c.budget), max(high.y, c.budget)
	}
	p.X.Min, p.X.Max = low.x, high.x
	p.Y.Min, p.Y.Max = low.y/1.15, high.y*1.3
	p.X.Tick.Marker = powers{base: 2, label: shortCount, most: 10}
	base := 2.0
	if c.units == unitsSI {
		base = 10
	}
	p.Y.Tick.Marker = powers{base: base, label: func(n float64) string { return roundSize.Replace(c.units.format(int64(n)) + " ") }, most: 9}
	grid := plotter.NewGrid()
	grid.Vertical.Color, grid.Horizontal.Color = color.Gray{0xe4}, color.Gray{0xe4}
	p.Add(grid, c)

	canvas.SetColor(color.White)
	canvas.Fill(canvas.Rectangle.Path())
	// The legend takes what its widest name needs, the plot the rest.
	entry := sans(p.Legend.TextStyle, 10)
	width := vg.Length(0)
	for _, line := range c.curves {
		width = max(width, entry.Width(line.name))
	}
	const sample, gap, line = vg.Length(24), vg.Length(8), vg.Length(16)
	side := width + sample + 3*gap
	area := draw.Crop(canvas, gap+line, -side, gap+line, -gap)
	p.Draw(area)
	// gonum places the labels of logarithmic axes as if they were linear, and
	// then makes room for them where they are not.
	label := sans(p.X.Label.TextStyle, 11)
	label.YAlign = plottext.YCenter
	canvas.FillText(label, vg.Point{X: area.Center().X, Y: canvas.Min.Y + line}, c.x)
	label.Rotation = math.Pi / 2
	canvas.FillText(label, vg.Point{X: canvas.Min.X + line, Y: area.Center().Y}, c.y)

	order := make([]int, len(c.curves))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(c.end(b).y, c.end(a).y) })
	left, y := canvas.Max.X-side+gap, canvas.Max.Y-vg.Points(40)
	entry.YAlign = plottext.YCenter
	styles := c.styles()
	for _, i := range order {
		canvas.StrokeLine2(styles[i], left, y, left+sample, y)
		canvas.FillText(entry, vg.Point{X: left + sample + gap, Y: y}, c.curves[i].name)
		y -= vg.Points(16)
	}
}

// Plot draws the curves, the budget and where they cross it.
func (c chart) Plot(canvas draw.Canvas, p *plot.Plot) {
	x, y := p.Transforms(&canvas)
	styles := c.styles()
	for i, line := range c.curves {
		points := make([]vg.Point, len(line.points))
		for j, q := range line.points {
			points[j] = vg.Point{X: x(q.x), Y: y(q.y)}
		}
		canvas.StrokeLines(styles[i], points)
	}
	if c.budget == 0 {
		return
	}
	label := sans(p.Legend.TextStyle, 9.5)
	at := y(c.budget)
	canvas.StrokeLine2(draw.LineStyle{Color: budgetColor, Width: vg.Points(1.2), Dashes: []vg.Length{5, 3}}, canvas.Min.X, at, canvas.Max.X, at)

	// Before they cross, curves are below the budget, so that its label stands
	// above it on the left; where they cross too soon, below it on the right.
	first := canvas.Max.X
	var order []int
	for i, line := range c.curves {
		if line.cross > 0 {
			order = append(order, i)
			first = min(first, x(line.cross))
		}
		if line.points[0].y > c.budget {
			first = canvas.Min.X
		}
	}
	label.Color = budgetColor
	place := vg.Point{X: canvas.Min.X + 6, Y: at + 4}
	if first < place.X+label.Width(c.budgetLabel)+12 {
		label.XAlign, label.YAlign = plottext.XRight, plottext.YTop
		place = vg.Point{X: canvas.Max.X - 6, Y: at - 4}
	}
	canvas.FillText(label, place, c.budgetLabel)

	// From each crossing a line goes down to its label, which stands on the
	// axis as near as the others allow.
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(c.curves[a].cross, c.curves[b].cross) })
	wanted := make([]vg.Length, len(order))
	height := vg.Length(0)
	for k, i := range order {
		wanted[k] = x(c.curves[i].cross)
		height = max(height, label.Width(c.curves[i].crossLabel))
	}
	label.Rotation, label.YAlign, label.XAlign = math.Pi/2, plottext.YCenter, plottext.XLeft
	foot := canvas.Min.Y + 5
	for k, to := range spread(wanted, 12, canvas.Min.X+6, canvas.Max.X-6) {
		i, from := order[k], wanted[k]
		ink := chartColors[i%len(chartColors)]
		canvas.DrawGlyph(draw.GlyphStyle{Color: ink, Radius: vg.Points(3), Shape: draw.CircleGlyph{}}, vg.Point{X: from, Y: at})
		canvas.StrokeLines(draw.LineStyle{Color: ink, Width: vg.Points(0.6), Dashes: []vg.Length{1, 2}}, []vg.Point{
			{X: from, Y: at}, {X: from, Y: foot + height + 24}, {X: to, Y: foot + height + 4},
		})
		label.Color = ink
		canvas.FillText(label, vg.Point{X: to, Y: foot}, c.curves[i].crossLabel)
	}
}

// spread moves places, which are in order, as little as leaves gap between
// each two, and within low and high if there is room.
func spread(places []vg.Length, gap, low, high vg.Length) []vg.Length {
	// Neighbours that are too close form a block about the mean of what its
	// members want; blocks that touch become one.
	type block struct {
		members int
		mean    vg.Length // of the middle
	}
	half := func(b block) vg.Length { return gap * vg.Length(b.members-1) / 2 }
	var blocks []block
	for _, p := range places {
		b := block{1, max(min(p, high), low)}
		for len(blocks) > 0 {
			last := blocks[len(blocks)-1]
			if last.mean+half(last)+gap <= b.mean-half(b) {
				break
			}
			n := vg.Length(last.members + b.members)
			b = block{last.members + b.members, (last.mean*vg.Length(last.members) + b.mean*vg.Length(b.members)) / n}
			b.mean = max(min(b.mean, high-half(b)), low+half(b))
			blocks = blocks[:len(blocks)-1]
		}
		blocks = append(blocks, b)
	}
	var out []vg.Length
	for _, b := range blocks {
		for m := range b.members {
			out = append(out, b.mean-half(b)+gap*vg.Length(m))
		}
	}
	return out
}

// roundSize takes the zeros from sizes that are whole.
var roundSize = strings.NewReplacer(".000 ", " ", ".00 ", " ", ".0 ", " ")

// powers puts ticks at powers of a base, and labels no more than so many.
type powers struct {
	base  float64
	label func(float64) string
	most  int
}

// Ticks returns the ticks from low to high.
func (t powers) Ticks(low, high float64) []plot.Tick {
	log := func(x float64) float64 { return math.Log2(x) / math.Log2(t.base) }
	first, last := int(math.Ceil(log(low)-1e-9)), int(math.Floor(log(high)+1e-9))
	step := 1
	for (last-first)/step+1 > t.most {
		step *= 2
	}
	var ticks []plot.Tick
	for e := first; e <= last; e++ {
		tick := plot.Tick{Value: math.Pow(t.base, float64(e))}
		// Counted from the end, where the reader looks.
		if (last-e)%step == 0 {
			tick.Label = t.label(tick.Value)
		}
		ticks = append(ticks, tick)
	}
	return ticks
}

// shortCount writes a power of two as people type tokens: 512, 4k, 1m.
func shortCount(n float64) string {
	for _, unit := range []struct {
		size float64
		name string
	}{{1 << 30, "g"}, {1 << 20, "m"}, {1 << 10, "k"}} {
		if n >= unit.size {
			return strconv.FormatFloat(n/unit.size, 'f', -1, 64) + unit.name
		}
	}
	return strconv.FormatFloat(n, 'f', -1, 64)
}
