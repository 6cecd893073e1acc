// An extender that decides nothing and costs next to nothing: what is lost with it is lost to the protocol.
//
// Every node fits (the names are copied from the body as they stand), none is preferred, and a bind is one
// POST with annotations of the usual size. Nothing is parsed that need not be.
package main

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"time"
)

var (
	server  = flag.String("server", "", "address of the API server, https://…")
	ca      = flag.String("ca", "", "its CA, PEM file")
	cert    = flag.String("cert", "", "client certificate, PEM file")
	key     = flag.String("key", "", "its key, PEM file")
	out     = flag.String("port-file", "", "where the port is written once it is known")
	padding = flag.Int("annotation-bytes", 700, "size of the annotation that a bind writes")
)

type binding struct{ PodName, PodNamespace, PodUID, Node string }

func client() *http.Client {
	pair, err := tls.LoadX509KeyPair(*cert, *key)
	if err != nil {
		log.Fatal(err)
	}
	pem, err := os.ReadFile(*ca)
	if err != nil {
		log.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	return &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		TLSClientConfig:     &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: roots},
		MaxIdleConnsPerHost: 128, ForceAttemptHTTP2: true}}
}

func body(r *http.Request) []byte {
	raw, err := io.ReadAll(r.Body)
	if err != nil {
		log.Print(err)
	}
	return raw
}

func answer(w http.ResponseWriter, parts ...[]byte) {
	whole := bytes.Join(parts, nil)
	w.Header().Set("Content-Type", "application/json")
	// kube-scheduler stops reading where the JSON ends: of a chunked answer the end is left, and the connection lost.
	w.Header().Set("Content-Length", fmt.Sprint(len(whole)))
	w.Write(whole)
}

func filter(w http.ResponseWriter, r *http.Request) {
	raw := body(r)
	begin := bytes.LastIndex(raw, []byte(`"NodeNames":[`))
	end := bytes.LastIndexByte(raw, ']')
	if begin < 0 || end < begin {
		http.Error(w, "no NodeNames", http.StatusBadRequest)
		return
	}
	answer(w, []byte(`{"FailedNodes":{},"FailedAndUnresolvableNodes":{},"Error":"",`), raw[begin:end], []byte(`]}`))
}

func prioritize(w http.ResponseWriter, r *http.Request) {
	body(r)
	answer(w, []byte(`[]`))
}

func bind(api *http.Client, note string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var b binding
		if err := json.Unmarshal(body(r), &b); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		text := fmt.Sprintf(`{"apiVersion":"v1","kind":"Binding","metadata":{"name":%q,"namespace":%q,"uid":%q,`+
			`"annotations":{"gpushare.dev/bench":%q}},"target":{"apiVersion":"v1","kind":"Node","name":%q}}`,
			b.PodName, b.PodNamespace, b.PodUID, note, b.Node)
		url := fmt.Sprintf("%s/api/v1/namespaces/%s/pods/%s/binding", *server, b.PodNamespace, b.PodName)
		problem := ""
		if got, err := api.Post(url, "application/json", bytes.NewReader([]byte(text))); err != nil {
			problem = err.Error()
		} else {
			said, _ := io.ReadAll(got.Body)
			got.Body.Close()
			if got.StatusCode >= 300 {
				problem = string(said)
			}
		}
		told, _ := json.Marshal(map[string]string{"Error": problem})
		answer(w, told)
	}
}

func main() {
	flag.Parse()
	http.HandleFunc("/gpushare/filter", filter)
	http.HandleFunc("/gpushare/prioritize", prioritize)
	http.HandleFunc("/gpushare/bind", bind(client(), string(bytes.Repeat([]byte("x"), *padding))))
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	fresh := *out + ".new"
	port := fmt.Sprint(listener.Addr().(*net.TCPAddr).Port)
	if err := os.WriteFile(fresh, []byte(port), 0o600); err != nil {
		log.Fatal(err)
	}
	if err := os.Rename(fresh, *out); err != nil {
		log.Fatal(err)
	}
	log.Fatal(http.Serve(listener, nil))
}
