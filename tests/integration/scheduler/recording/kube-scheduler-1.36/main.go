// Calls an extender as kube-scheduler 1.36 does, by its own code, and writes every request that left it.
//
// Usage: go run . ../cases.json > ../kube-scheduler-1.36.json
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework"
)

type scene struct {
	Nodes []*v1.Node
	Cases []struct {
		Name    string
		Pod     *v1.Pod
		Bind    string
		Victims map[string][]*v1.Pod
	}
}

type request struct {
	Case        string `json:"case"`
	Verb        string `json:"verb"`
	Form        string `json:"form"`
	Method      string `json:"method"`
	Path        string `json:"path"`
	ContentType string `json:"contentType"`
	Body        string `json:"body"`
}

// lister answers what kube-scheduler asks its own cache while it reads an answer to preempt.
type lister map[string]fwk.NodeInfo

func (l lister) List() ([]fwk.NodeInfo, error)                     { return nil, nil }
func (l lister) HavePodsWithAffinityList() ([]fwk.NodeInfo, error) { return nil, nil }
func (l lister) HavePodsWithRequiredAntiAffinityList() ([]fwk.NodeInfo, error) {
	return nil, nil
}
func (l lister) Get(name string) (fwk.NodeInfo, error) {
	if info, ok := l[name]; ok {
		return info, nil
	}
	return nil, fmt.Errorf("node %q is not known", name)
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// answer says yes to everything, so that the client goes on.
func answer(verb string, body []byte) interface{} {
	switch verb {
	case "filter":
		var args extenderv1.ExtenderArgs
		must(json.Unmarshal(body, &args))
		return extenderv1.ExtenderFilterResult{Nodes: args.Nodes, NodeNames: args.NodeNames}
	case "prioritize":
		return extenderv1.HostPriorityList{}
	case "preempt":
		return extenderv1.ExtenderPreemptionResult{}
	}
	return extenderv1.ExtenderBindingResult{}
}

func main() {
	text, err := os.ReadFile(os.Args[1])
	must(err)
	var all scene
	must(json.Unmarshal(text, &all))
	var nodes []fwk.NodeInfo
	for _, node := range all.Nodes {
		info := framework.NewNodeInfo()
		info.SetNode(node)
		nodes = append(nodes, info)
	}
	var seen []request
	var now request
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		must(err)
		now.Verb = r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]
		now.Method, now.Path, now.ContentType = r.Method, r.URL.Path, r.Header.Get("Content-Type")
		now.Body = string(body)
		seen = append(seen, now)
		must(json.NewEncoder(w).Encode(answer(now.Verb, body)))
	}))
	defer server.Close()
	for _, form := range []string{"names", "nodes"} {
		extender, err := scheduler.NewHTTPExtender(&config.Extender{
			URLPrefix: server.URL + "/gpushare", FilterVerb: "filter", PrioritizeVerb: "prioritize",
			BindVerb: "bind", PreemptVerb: "preempt", Weight: 5, NodeCacheCapable: form == "names",
		})
		must(err)
		for _, one := range all.Cases {
			now = request{Case: one.Name, Form: form}
			_, _, _, err = extender.Filter(one.Pod, nodes)
			must(err)
			_, _, err = extender.Prioritize(one.Pod, nodes)
			must(err)
			if one.Bind != "" {
				must(extender.Bind(&v1.Binding{
					ObjectMeta: metav1.ObjectMeta{
						Namespace: one.Pod.Namespace, Name: one.Pod.Name, UID: one.Pod.UID},
					Target: v1.ObjectReference{Kind: "Node", Name: one.Bind},
				}))
			}
			if len(one.Victims) > 0 {
				victims := map[string]*extenderv1.Victims{}
				known := lister{}
				for node, pods := range one.Victims {
					victims[node] = &extenderv1.Victims{Pods: pods, NumPDBViolations: 1}
					known[node] = framework.NewNodeInfo(pods...)
				}
				_, err = extender.ProcessPreemption(one.Pod, victims, known)
				must(err)
			}
		}
	}
	out := json.NewEncoder(os.Stdout)
	out.SetEscapeHTML(false)
	out.SetIndent("", " ")
	must(out.Encode(seen))
}
