/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * The flame graph: outermost callers on top, width by value, the largest left. Whole without its script, which adds what
 * a still picture lacks: the value of what the pointer is on, zoom on click, search. Light and dark.
 */
#include "convert/flame.h"

#include "convert/flame_impl.h"
#include "convert/outfile.h"
#include "trace/session.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define WIDTH 1200.0
#define MARGIN 16.0
#define TOP 92.0
#define ROW 19.0
#define CHAR 6.3 /* of the labels, about */
#define LEAST 0.12 /* narrower ones are left out */
#define DEEPEST 400u

static const char style[] =
	"<style>\n"
	"svg{font:12px system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif;background:#fff}\n"
	".bg{fill:#fff}.title{font-size:19px;font-weight:600;fill:#1c2430}.sub,.hint,.key{font-size:12px;fill:#5d6878}\n"
	".what{font-size:13px;fill:#1c2430}.f{cursor:pointer}.f rect{stroke:#fff;stroke-width:.6;rx:2px}\n"
	".f text{font-size:11px;fill:#1b1b1b;pointer-events:none}.f:hover rect{stroke:#1c2430;stroke-width:1.2}\n"
	".dim rect{opacity:.35}.hit rect{fill:#d63ba0}.hit text{fill:#fff}.btn{cursor:pointer;fill:#2b6cb0;font-size:12px}\n"
	"input{font:12px system-ui,sans-serif;width:100%;box-sizing:border-box;padding:3px 8px;border:1px solid #b8c0cc;"
	"border-radius:6px;background:#fff;color:#1c2430;outline-color:#2b6cb0}\n"
	"@media (prefers-color-scheme:dark){svg,.bg{background:#14181f;fill:#14181f}.title,.what{fill:#e8ecf2}"
	".sub,.hint,.key{fill:#98a3b3}.f rect{stroke:#14181f}.f:hover rect{stroke:#fff}.btn{fill:#7ab7f5}"
	"input{background:#1f2631;color:#e8ecf2;border-color:#47526a}}\n"
	"</style>\n";

/* Boxes carry their place as data: x and w in parts of the whole, d the row, n the name, v the words of the value. */
static const char script[] =
	"<script>//<![CDATA[\n"
	"(()=>{const S=document.documentElement,W=1200,M=16,T=92,R=19,C=6.3;\n"
	"const all=[...S.querySelectorAll('.f')].map(g=>({g,x:+g.dataset.x,w:+g.dataset.w,d:+g.dataset.d,n:g.dataset.n,"
	"v:g.dataset.v,r:g.querySelector('rect'),t:g.querySelector('text')}));\n"
	"const what=S.querySelector('.what'),back=S.querySelector('#back'),idle=what.textContent;\n"
	"function label(b,px){const room=Math.floor((px-8)/C);let s=room<4?'':b.n;"
	"if(s.length>room)s=s.slice(0,room-1)+'\\u2026';b.t.textContent=s}\n"
	"function zoom(f){const eps=1e-9;back.style.display=f.d?'':'none';for(const b of all){"
	"const over=b.d<f.d&&b.x<=f.x+eps&&b.x+b.w>=f.x+f.w-eps,in_=b.d>=f.d&&b.x>=f.x-eps&&b.x+b.w<=f.x+f.w+eps;\n"
	"let x=(b.x-f.x)/f.w,w=b.w/f.w;if(over){x=0;w=1}const px=w*(W-2*M);"
	"if((!over&&!in_)||px<.1){b.g.style.display='none';continue}\n"
	"b.g.style.display='';b.g.classList.toggle('dim',over);b.r.setAttribute('x',M+x*(W-2*M));b.r.setAttribute('width',px);"
	"b.t.setAttribute('x',M+x*(W-2*M)+4);label(b,px)}}\n"
	"for(const b of all){b.g.addEventListener('mouseenter',()=>{what.textContent=b.n+' \\u2014 '+b.v});"
	"b.g.addEventListener('mouseleave',()=>{what.textContent=idle});b.g.addEventListener('click',()=>zoom(b));"
	"b.g.querySelector('title')?.remove()}\n"
	"back.addEventListener('click',()=>zoom(all[0]));\n"
	"const fo=document.createElementNS('http://www.w3.org/2000/svg','foreignObject');"
	"for(const[k,v]of Object.entries({x:W-M-240,y:14,width:240,height:30}))fo.setAttribute(k,v);\n"
	"const box=document.createElementNS('http://www.w3.org/1999/xhtml','input');box.placeholder='search: part of a name';"
	"fo.appendChild(box);S.appendChild(fo);\n"
	"box.addEventListener('input',()=>{const q=box.value.toLowerCase();let sum=0,end=-1;"
	"for(const b of all){const hit=q&&b.n.toLowerCase().includes(q);b.g.classList.toggle('hit',!!hit);b.hit=hit}\n"
	"if(q){for(const b of all.filter(b=>b.hit).sort((a,b)=>a.x-b.x||b.w-a.w)){if(b.x+b.w>end+1e-9){"
	"sum+=b.x+b.w-Math.max(end,b.x);end=b.x+b.w}}what.textContent='\\u201c'+box.value+'\\u201d: '+(100*sum).toFixed(1)+' %'}"
	"else what.textContent=idle});\n"
	"addEventListener('keydown',e=>{if(e.key==='Escape'){box.value='';box.dispatchEvent(new Event('input'));zoom(all[0])}"
	"else if(e.key==='/'&&document.activeElement!==box){e.preventDefault();box.focus()}});\n"
	"})();\n"
	"//]]></script>\n";

#define PUT(out, text) outfile_put(out, text, strlen(text))
#define PUTF(out, ...)                                             \
	do {                                                       \
		char putf[512];                                    \
		int n = snprintf(putf, sizeof(putf), __VA_ARGS__); \
		outfile_put(out, putf, n < 512 ? (size_t)n : 511); \
	} while (0)

/* Text or attribute; bytes that XML has no place for, and what is no UTF-8, become '?'. */
static void put_xml(struct outfile *out, const char *text, size_t len)
{
	size_t i;

	for (i = 0; i < len; i++) {
		unsigned char c = (unsigned char)text[i];
		size_t more = c < 0x80		      ? 0
			      : c >= 0xc2 && c < 0xe0 ? 1
			      : c >= 0xe0 && c < 0xf0 ? 2
			      : c >= 0xf0 && c < 0xf5 ? 3
						      : 9,
		       k;

		for (k = 1; k <= more && more < 9; k++)
			if (i + k >= len || ((unsigned char)text[i + k] & 0xc0) != 0x80)
				more = 9;
		if (c == '&')
			PUT(out, "&amp;");
		else if (c == '<')
			PUT(out, "&lt;");
		else if (c == '>')
			PUT(out, "&gt;");
		else if (c == '"')
			PUT(out, "&quot;");
		else if (c < 32 || c == 127 || more == 9)
			PUT(out, "?");
		else
			outfile_put(out, text + i, more + 1);
		i += more < 9 ? more : 0;
	}
}

/* --- colours: by what a frame is, and a little by its name so that neighbours differ ---------------------------------------- */

enum frame_sort { SORT_PYTHON, SORT_NATIVE, SORT_RUNTIME, SORT_OTHER };

static enum frame_sort sort_of(const char *name)
{
	static const char *const runtime[] = { "libc.so",  "libpthread", "ld-linux", "libstdc++",
					       "libgcc_s", "python3",	 "libpython" };
	size_t i;

	if (strstr(name, ".py:") || strstr(name, "<string>:"))
		return SORT_PYTHON;
	if (name[0] == '[' || !strncmp(name, "rank ", 5) || !strncmp(name, "process ", 8) || !strncmp(name, "0x", 2))
		return SORT_OTHER;
	for (i = 0; i < sizeof(runtime) / sizeof(runtime[0]); i++)
		if (strstr(name, runtime[i]))
			return SORT_RUNTIME;
	return SORT_NATIVE;
}

static void colour_of(const char *name, char *out, size_t room)
{
	static const struct {
		int hue, hues, saturation, light;
	} sorts[] = {
		[SORT_PYTHON] = { 188, 28, 46, 68 },
		[SORT_NATIVE] = { 24, 26, 84, 70 },
		[SORT_RUNTIME] = { 44, 10, 34, 78 },
		[SORT_OTHER] = { 220, 1, 10, 82 },
	};
	enum frame_sort sort = sort_of(name);
	unsigned int hash = 5381;

	for (; *name && *name != '+'; name++)
		hash = hash * 33 + (unsigned char)*name;
	snprintf(out, room, "hsl(%d,%d%%,%d%%)", sorts[sort].hue + (int)(hash % (unsigned int)sorts[sort].hues),
		 sorts[sort].saturation, sorts[sort].light + (int)(hash / 97 % 7) - 3);
}

static void put_key(struct outfile *out, double x, const char *sample, const char *words)
{
	char colour[40];

	colour_of(sample, colour, sizeof(colour));
	PUTF(out,
	     "<rect x=\"%.1f\" y=\"50\" width=\"11\" height=\"11\" rx=\"2\" fill=\"%s\"/>"
	     "<text class=\"key\" x=\"%.1f\" y=\"60\">%s</text>\n",
	     x, colour, x + 16, words);
}

/* --- boxes ------------------------------------------------------------------------------------------------------------- */

struct picture {
	const struct flame *flame;
	const struct flame_look *look;
	struct outfile out;
	uint32_t deepest;
};

static double scale(const struct flame *flame)
{
	return flame->nodes[0].total ? (WIDTH - 2 * MARGIN) / (double)flame->nodes[0].total : 0;
}

static void put_label(struct outfile *out, const char *name, double width)
{
	size_t room = width > 8 ? (size_t)((width - 8) / CHAR) : 0, len = strlen(name), cut;

	if (room < 4)
		return;
	if (len <= room) {
		put_xml(out, name, len);
		return;
	}
	for (cut = room - 1; cut && ((unsigned char)name[cut] & 0xc0) == 0x80; cut--)
		; /* not inside a character */
	put_xml(out, name, cut);
	PUT(out, "\xe2\x80\xa6");
}

static void put_words(struct picture *p, const struct flame_node *node)
{
	const struct flame_node *root = &p->flame->nodes[0];
	char value[48];

	p->look->format(value, sizeof(value), node->total);
	PUTF(&p->out, "%s (%.1f %%), %.0f %s", value, 100.0 * (double)node->total / (double)root->total,
	     node->total_count, p->look->counted);
}

static void put_box(struct picture *p, uint32_t at, uint64_t begin)
{
	const struct flame_node *node = &p->flame->nodes[at], *root = &p->flame->nodes[0];
	const char *name = at ? ev_text(p->flame->session, node->name) : "all";
	double x = MARGIN + (double)begin * scale(p->flame), width = (double)node->total * scale(p->flame);
	struct outfile *out = &p->out;
	char colour[40];

	colour_of(at ? name : "[all]", colour, sizeof(colour));
	PUTF(out, "<g class=\"f\" data-x=\"%.7f\" data-w=\"%.7f\" data-d=\"%u\" data-n=\"",
	     (double)begin / (double)root->total, (double)node->total / (double)root->total, node->depth);
	put_xml(out, name, strlen(name));
	PUT(out, "\" data-v=\"");
	put_words(p, node);
	PUT(out, "\"><title>");
	put_xml(out, name, strlen(name));
	PUT(out, " - ");
	put_words(p, node);
	PUTF(out, "</title><rect x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%.1f\" fill=\"%s\"/>", x,
	     TOP + node->depth * ROW, width, ROW - 1, colour);
	PUTF(out, "<text x=\"%.2f\" y=\"%.1f\">", x + 4, TOP + node->depth * ROW + 13);
	put_label(out, name, width);
	PUT(out, "</text></g>\n");
}

/* @begin: where its box begins, in values. */
static void put_tree(struct picture *p, uint32_t at, uint64_t begin)
{
	const struct flame_node *node = &p->flame->nodes[at];
	uint32_t child;

	if ((double)node->total * scale(p->flame) < LEAST || node->depth > DEEPEST)
		return;
	put_box(p, at, begin);
	for (child = node->first; child; child = p->flame->nodes[child].next) {
		put_tree(p, child, begin);
		begin += p->flame->nodes[child].total;
	}
}

static void put_head(struct picture *p)
{
	const struct flame_node *root = &p->flame->nodes[0];
	struct outfile *out = &p->out;
	double height;
	uint32_t i;

	for (i = 0; i < p->flame->count; i++)
		if ((double)p->flame->nodes[i].total * scale(p->flame) >= LEAST &&
		    p->flame->nodes[i].depth > p->deepest)
			p->deepest = p->flame->nodes[i].depth < DEEPEST ? p->flame->nodes[i].depth : DEEPEST;
	height = TOP + (p->deepest + 1) * ROW + MARGIN;
	PUTF(out,
	     "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<svg xmlns=\"http://www.w3.org/2000/svg\" "
	     "viewBox=\"0 0 %.0f %.0f\" width=\"%.0f\" height=\"%.0f\">\n",
	     WIDTH, height, WIDTH, height);
	PUT(out, style);
	PUTF(out, "<rect class=\"bg\" width=\"%.0f\" height=\"%.0f\"/>\n<text class=\"title\" x=\"16\" y=\"29\">",
	     WIDTH, height);
	put_xml(out, p->look->title, strlen(p->look->title));
	PUT(out, "</text>\n<text class=\"sub\" x=\"16\" y=\"48\">");
	put_xml(out, p->look->subtitle, strlen(p->look->subtitle));
	PUT(out, "</text>\n");
	put_key(out, WIDTH - MARGIN - 262, "f (x.py:1)", "Python");
	put_key(out, WIDTH - MARGIN - 194, "lib.so+0x1", "native");
	put_key(out, WIDTH - MARGIN - 128, "libc.so.6+0x1", "C / Python runtime");
	PUT(out, "<text class=\"what\" x=\"16\" y=\"76\">");
	put_words(p, root);
	PUTF(out,
	     "</text>\n<text class=\"btn\" id=\"back\" x=\"%.0f\" y=\"76\" text-anchor=\"end\" style=\"display:none\">"
	     "whole picture (Esc)</text>\n",
	     WIDTH - MARGIN);
}

int flame_svg(struct flame *flame, const char *path, const struct flame_look *look, struct st_err *err)
{
	struct picture p = { .flame = flame, .look = look };
	int ret = flame_order(flame);

	if (ret < 0)
		return err_set(err, ret, "out of memory");
	ret = outfile_open(&p.out, path, err);
	if (ret < 0)
		return ret;
	put_head(&p);
	put_tree(&p, 0, 0);
	PUT(&p.out, script);
	PUT(&p.out, "</svg>\n");
	return outfile_finish(&p.out, err);
}
