package cmd

import (
	"bytes"
	"cmp"
	"image/color"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
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
		if q.y <= 0 {
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
	// Room on the right, where the labels of the widest schemes stand.
	p.X.Max += (p.X.Max - p.X.Min) * 0.25
	if p.X.Max == p.X.Min {
		p.X.Max++
	}
	return p, nil
}
